use super::*;
use crate::catalog::Catalog;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use watchcore::{Cache, Change};

/// Difficult texts: empty, with characters of the selector grammar, parts of each other.
const TEXTS: [&str; 12] = ["", "a", "b", "ab", "a,b", "a=b", "a\\b", "\\,", "!=", "a/b", "ä", " a"];
/// Names and namespaces as they occur in keys.
const SEGMENTS: [&str; 5] = ["a", "b", "a,b=\\", "ä", "..."];

fn widgets() -> Resource {
    Resource::new("matrix.test", "v1", "widgets", "Widget")
        .namespaced(true)
        .prefix("/registry/widgets/")
        .field("spec.color", "/spec/color")
        .field("odd", "/spec/a=b,!\\")
}

fn nodes() -> Resource {
    Resource::new("", "v1", "nodes", "Node").prefix("/registry/nodes/").field("spec.color", "/spec/color")
}

/// Widgets and nodes over a cache that was or was not prepared for them.
fn catalog(prepared: bool) -> Catalog {
    let resources = [widgets(), nodes()];
    let builder = Cache::builder("/registry/");
    let builder = if prepared { Resource::declare(builder, &resources).unwrap() } else { builder };
    Catalog::new(vec![builder.build().unwrap()], resources.to_vec(), 1 << 20).unwrap()
}

fn served(catalog: &Catalog, namespaced: bool) -> &Arc<Served> {
    let (group, plural) = if namespaced { ("matrix.test", "widgets") } else { ("", "nodes") };
    catalog.resource(group, "v1", plural).unwrap()
}

fn params(selector: &str, labels: &str) -> Params {
    let mut params = Params::parse(None).unwrap();
    params.field_selector = Some(selector.to_owned());
    params.label_selector = Some(labels.to_owned());
    params
}

/// An object's fields by name, and its labels, as Kubernetes' selectors see them.
#[derive(Clone, Debug)]
struct Selected {
    fields: BTreeMap<&'static str, String>,
    labels: BTreeMap<String, String>,
}

/// A term of a field selector: name, whether it must be equal, value.
type Term = (&'static str, bool, String);

fn rendered(terms: &[Term]) -> String {
    let escaped = |value: &str| value.replace('\\', r"\\").replace(',', r"\,").replace('=', r"\=");
    let term = |(at, (name, equal, value)): (usize, &Term)| {
        let operator = if *equal { ["=", "=="][at % 2] } else { "!=" };
        format!("{name}{operator}{}", escaped(value))
    };
    terms.iter().enumerate().map(term).collect::<Vec<_>>().join(",")
}

fn text() -> impl Strategy<Value = String> {
    prop::sample::select(&TEXTS[..]).prop_map(str::to_owned)
}

fn segment() -> impl Strategy<Value = String> {
    prop::sample::select(&SEGMENTS[..]).prop_map(str::to_owned)
}

fn term(names: &'static [&'static str]) -> impl Strategy<Value = Term> {
    (prop::sample::select(names), any::<bool>(), prop_oneof![text(), segment()])
}

fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    btree_map(prop::sample::select(&["app", "tier"][..]).prop_map(str::to_owned), "[xy]?", 0..3)
}

/// A term of a label selector, and its meaning.
fn label_term() -> impl Strategy<Value = (String, LabelTest)> {
    let key = prop::sample::select(&["app", "tier", "other"][..]);
    (key, 0..6, "[xy]").prop_map(|(key, operator, value)| {
        let (text, not) = match operator {
            0 => (format!("{key}={value}"), false),
            1 => (format!("{key}!={value}"), true),
            2 => (format!("{key} in ({value},z)"), false),
            3 => (format!("{key} notin ({value},z)"), true),
            4 => return (key.to_owned(), (key, None, false)),
            _ => return (format!("!{key}"), (key, None, true)),
        };
        (text, (key, Some(value), not))
    })
}

/// Key, expected value (`None`: any), and whether the test is negated.
type LabelTest = (&'static str, Option<String>, bool);

fn label_holds(labels: &BTreeMap<String, String>, (key, value, not): &LabelTest) -> bool {
    let found = labels.get(*key);
    let holds = match value {
        Some(value) => found == Some(value),
        None => found.is_some(),
    };
    holds != *not
}

/// Stores objects of both resources and returns their fields and labels by key.
fn fill(
    catalog: &Catalog,
    objects: Vec<(String, String, String, BTreeMap<String, String>)>,
) -> BTreeMap<(bool, Vec<u8>), Selected> {
    let cache = &catalog.caches()[0];
    let mut writer = cache.writer().unwrap();
    let (mut all, mut values) = (BTreeMap::new(), BTreeMap::new());
    for (namespace, name, color, labels) in objects {
        for namespaced in [true, false] {
            let namespace = if namespaced { namespace.as_str() } else { "" };
            let key = served(catalog, namespaced).resource.key(namespaced.then_some(namespace), &name);
            let value = json!({"metadata": {"labels": labels}, "spec": {"color": color, "a=b,!\\": color}});
            let mut fields: BTreeMap<&'static str, String> = BTreeMap::new();
            fields.insert("metadata.name", name.clone());
            fields.insert("metadata.namespace", namespace.to_owned());
            fields.insert("spec.color", color.clone());
            fields.insert("odd", color.clone());
            all.insert((namespaced, key.clone()), Selected { fields, labels: labels.clone() });
            values.insert(key, value.to_string());
        }
    }
    writer.apply(1, values.iter().map(|(key, value)| Change::put(key, value))).unwrap();
    all
}

/// Returns the keys that pass a selection, and whether every key of its range passes.
fn passing(served: &Served, selection: &Selection) -> (Vec<Vec<u8>>, bool) {
    let snapshot = served.cache.snapshot().unwrap();
    let passed = snapshot.filtered(&selection.filter).unwrap().map(|kv| kv.key().to_vec()).collect();
    let in_range = snapshot.filtered(&Filter::any().range(selection.range.clone())).unwrap().count();
    let passed: Vec<Vec<u8>> = passed;
    let all = passed.len() == in_range;
    (passed, all)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// For random objects and selectors, the core's filter passes the objects that Kubernetes' rules select.
    #[test]
    fn selection_equals_kubernetes(
        objects in vec((segment(), segment(), text(), labels()), 1..12),
        prepared: bool,
        namespaced: bool,
        path_namespace in prop::option::of(segment()),
        of_key in vec(term(&["metadata.name", "metadata.namespace"]), 0..4),
        of_value in vec(term(&["spec.color", "odd"]), 0..3),
        label_terms in vec(label_term(), 0..3),
    ) {
        let catalog = catalog(prepared);
        let all = fill(&catalog, objects);
        let served = served(&catalog, namespaced);
        // An unprepared cache has no attributes, and nodes have no field `odd`.
        let of_value = if prepared { of_value } else { Vec::new() };
        let of_value: Vec<Term> = of_value.into_iter().filter(|term| namespaced || term.0 != "odd").collect();
        let label_terms = if prepared { label_terms } else { Vec::new() };
        // Objects without namespaces have no such field: see `objects_without_namespaces_have_no_such_field`.
        let of_key = of_key.into_iter().filter(|term| namespaced || term.0 != "metadata.namespace");
        let terms: Vec<Term> = of_key.chain(of_value).collect();
        let namespace = path_namespace.as_deref().filter(|_| namespaced);
        let labels = label_terms.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>().join(",");
        let params = params(&rendered(&terms), &labels);
        let selection = Selection::of(served, namespace, None, &params).unwrap();
        let expected: Vec<Vec<u8>> = all
            .iter()
            .filter(|((of, _), object)| {
                *of == namespaced
                    && namespace.is_none_or(|namespace| object.fields["metadata.namespace"] == namespace)
                    && terms.iter().all(|(name, equal, value)| (object.fields[name] == *value) == *equal)
                    && label_terms.iter().all(|(_, test)| label_holds(&object.labels, test))
            })
            .map(|((_, key), _)| key.clone())
            .collect();
        let (passed, whole_range) = passing(served, &selection);
        prop_assert_eq!(&passed, &expected);
        prop_assert!(!selection.only_range || whole_range, "only a range, but it keeps some back");
    }
}

#[test]
fn known_names_become_keys() {
    for prepared in [true, false] {
        let catalog = catalog(prepared);
        let widgets = served(&catalog, true);
        let nodes = served(&catalog, false);
        let key = |key: &str| Filter::any().key(key);
        let cases = [
            (widgets, Some("shop"), None, "metadata.name=a", key("/registry/widgets/shop/a")),
            (widgets, None, None, "metadata.namespace=shop,metadata.name=a", key("/registry/widgets/shop/a")),
            (widgets, Some("shop"), Some("a"), "metadata.name!=b", key("/registry/widgets/shop/a")),
            (widgets, None, None, "metadata.namespace=shop", Filter::any().prefix("/registry/widgets/shop/")),
            (widgets, Some("shop"), None, "", Filter::any().prefix("/registry/widgets/shop/")),
            (widgets, None, None, "", Filter::any().prefix("/registry/widgets/")),
            (nodes, None, None, "metadata.name=a", key("/registry/nodes/a")),
            (nodes, None, Some("a"), "", key("/registry/nodes/a")),
        ];
        for (served, namespace, name, selector, expected) in cases {
            let selection = Selection::of(served, namespace, name, &params(selector, "")).unwrap();
            assert_eq!((selection.filter, selection.only_range), (expected, true), "{selector}");
        }
        for selector in ["metadata.name=a/b", "metadata.name=", "metadata.name=a,metadata.name!=a"] {
            let selection = Selection::of(widgets, Some("shop"), None, &params(selector, "")).unwrap();
            assert_eq!((selection.filter, selection.only_range), (Filter::none().prefix("/registry/widgets/"), false));
        }
        let with_label = Selection::of(widgets, Some("shop"), None, &params("", "app")).unwrap();
        assert!(!with_label.only_range);
    }
}

#[test]
fn objects_without_namespaces_have_no_such_field() {
    let catalog = catalog(true);
    for selector in ["metadata.namespace=", "metadata.namespace!=a", "metadata.name=a,metadata.namespace==a"] {
        let refusal = Selection::of(served(&catalog, false), None, None, &params(selector, "")).unwrap_err();
        assert_eq!((refusal.code(), refusal.message()), (400, "field label not supported: metadata.namespace"));
    }
}

#[test]
fn paths_of_another_shape_are_not_found() {
    let catalog = catalog(true);
    for (namespaced, namespace, name) in
        [(true, None, Some("a")), (false, Some("shop"), None), (false, Some("shop"), Some("a"))]
    {
        let refusal = Selection::of(served(&catalog, namespaced), namespace, name, &params("", "")).unwrap_err();
        assert_eq!(refusal.code(), 404);
    }
    let other = Selection::of(served(&catalog, true), Some("shop"), Some("a"), &params("metadata.name=b", ""));
    assert_eq!(other.unwrap_err().code(), 400);
}
