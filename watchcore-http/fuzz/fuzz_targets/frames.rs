#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| watchcore_http::fuzz::frames(data));
