//! An authenticated user.

/// An authenticated user.
///
/// ```
/// let user = watchcore_http::User::new("alice").group("readers");
/// assert_eq!((user.name(), user.groups()), ("alice", &["readers".to_owned()][..]));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct User {
    name: String,
    groups: Vec<String>,
}

impl User {
    /// Creates a user without groups.
    pub fn new(name: impl Into<String>) -> User {
        User { name: name.into(), groups: Vec::new() }
    }

    /// Adds the user to a group.
    pub fn group(mut self, group: impl Into<String>) -> User {
        self.groups.push(group.into());
        self
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the groups.
    pub fn groups(&self) -> &[String] {
        &self.groups
    }

    pub(super) fn anonymous() -> User {
        User::new("system:anonymous").group("system:unauthenticated")
    }
}
