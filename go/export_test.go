package watchcore

// Debug says whether the tests are built with the tag debug.
const Debug = debug
