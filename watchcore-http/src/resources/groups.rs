//! The groups and versions of the served resources, in Kubernetes' order.

use crate::object::Resource;
use std::cmp::{Ordering, Reverse};

/// A group with its versions, the preferred one first, each with its resources.
pub(super) struct DiscoveredGroup<'s> {
    pub(super) name: &'s str,
    pub(super) versions: Vec<(&'s str, Vec<&'s Resource>)>,
}

/// Groups resources in Kubernetes' order: groups by name, versions by stability and age, resources as declared. The
/// core group with its `v1` always exists, even without resources.
pub(super) fn groups<'s>(resources: impl Iterator<Item = &'s Resource>) -> Vec<DiscoveredGroup<'s>> {
    let mut groups = vec![DiscoveredGroup { name: "", versions: vec![("v1", Vec::new())] }];
    for resource in resources {
        let at = groups.iter().position(|group| group.name == resource.group).unwrap_or_else(|| {
            groups.push(DiscoveredGroup { name: &resource.group, versions: Vec::new() });
            groups.len() - 1
        });
        let versions = &mut groups[at].versions;
        match versions.iter_mut().find(|(version, _)| *version == resource.version) {
            Some((_, there)) => there.push(resource),
            None => versions.push((&resource.version, vec![resource])),
        }
    }
    groups.sort_by(|one, other| one.name.cmp(other.name));
    for group in &mut groups {
        group.versions.sort_by(|(one, _), (other, _)| version_order(one, other));
    }
    groups
}

/// Orders versions: `v2`, `v1`, `v2beta1`, `v1beta2`, `v1alpha1`, then names of other forms alphabetically.
fn version_order(one: &str, other: &str) -> Ordering {
    // Sorted by stability, then the higher major number, then the higher minor number.
    let place = |version| version_parts(version).map(|(stability, major, minor)| (stability, Reverse((major, minor))));
    match (place(one), place(other)) {
        (Some(one), Some(other)) => one.cmp(&other),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => one.cmp(other),
    }
}

/// Returns the stability (0: stable, 1: beta, 2: alpha) and the two numbers of a version such as `v2beta1`.
fn version_parts(version: &str) -> Option<(u8, u64, u64)> {
    fn number(text: &str) -> Option<u64> {
        text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
    }
    let version = version.strip_prefix('v')?;
    for (word, stability) in [("beta", 1), ("alpha", 2)] {
        if let Some((major, minor)) = version.split_once(word) {
            return Some((stability, number(major)?, number(minor)?));
        }
    }
    Some((0, number(version)?, 0))
}

impl DiscoveredGroup<'_> {
    /// `v1` or `group/v1`.
    pub(super) fn group_version(&self, version: &str) -> String {
        if self.name.is_empty() { version.to_owned() } else { format!("{}/{version}", self.name) }
    }

    /// Returns the path without its leading slash: `api/v1` or `apis/group/v1`.
    pub(super) fn path(&self, version: &str) -> String {
        format!("{}/{}", if self.name.is_empty() { "api" } else { "apis" }, self.group_version(version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_stand_as_in_kubernetes() {
        // The order given in the Kubernetes documentation.
        let ordered = [
            "v10",
            "v2",
            "v1",
            "v11beta2",
            "v10beta3",
            "v3beta1",
            "v12alpha1",
            "v11alpha2",
            "foo1",
            "foo10",
            "v",
            "v1beta",
            "v1x",
            "v1gamma1",
        ];
        let (known, other) = ordered.split_at(8);
        let mut other = other.to_vec();
        other.sort_unstable();
        let expected: Vec<&str> = known.iter().copied().chain(other).collect();
        let mut sorted = expected.clone();
        sorted.reverse();
        sorted.sort_by(|one, other| version_order(one, other));
        assert_eq!(sorted, expected);
    }
}
