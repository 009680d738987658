//! Minimal OpenAPI 3 documents: kubectl requests them before it explains a kind, and some clients before they read
//! objects. They list the kinds and their paths; the fields are declared as arbitrary.

use super::groups::DiscoveredGroup;
use crate::object::Resource;
use serde_json::{Map, Value, json};

/// Returns the index of documents by group and version.
pub(super) fn root(groups: &[DiscoveredGroup<'_>]) -> Value {
    let mut paths = Map::new();
    for group in groups {
        for (version, _) in &group.versions {
            let path = group.path(version);
            let url = format!("/openapi/v3/{path}");
            paths.insert(path, json!({"serverRelativeURL": url}));
        }
    }
    json!({"paths": paths})
}

/// Returns the document of one group and version, by its path: `api/v1`, `apis/group/v1`; `None` if it is not served.
pub(super) fn of_version(groups: &[DiscoveredGroup<'_>], asked: &str) -> Option<Value> {
    let mut all = groups.iter().flat_map(|group| group.versions.iter().map(move |version| (group, version)));
    let (group, (version, resources)) = all.find(|(group, (version, _))| group.path(version) == asked)?;
    let base = format!("/{}", group.path(version));
    let (mut paths, mut schemas) = (Map::new(), Map::new());
    for resource in resources {
        let model = model_name(resource);
        let list_model = format!("{model}List");
        schemas.insert(model.clone(), schema(resource));
        schemas.insert(list_model.clone(), list_schema(resource, &model));
        let plural = &resource.plural;
        let everywhere = format!("{base}/{plural}");
        if resource.namespaced {
            let inside = format!("{base}/namespaces/{{namespace}}/{plural}");
            let all = operation(resource, "list", "ForAllNamespaces", &list_model);
            paths.insert(everywhere, json!({"get": all}));
            paths.insert(format!("{inside}/{{name}}"), item(resource, &model, &["namespace", "name"]));
            paths.insert(
                inside,
                json!({"get": operation(resource, "list", "", &list_model), "parameters": path_parameters(&["namespace"])}),
            );
        } else {
            paths.insert(format!("{everywhere}/{{name}}"), item(resource, &model, &["name"]));
            paths.insert(everywhere, json!({"get": operation(resource, "list", "", &list_model)}));
        }
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "watchcore", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "components": {"schemas": schemas},
    }))
}

/// Describes the path of one object.
fn item(resource: &Resource, model: &str, parameters: &[&str]) -> Value {
    json!({"get": operation(resource, "get", "", model), "parameters": path_parameters(parameters)})
}

fn path_parameters(names: &[&str]) -> Value {
    names
        .iter()
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
        .collect()
}

fn operation(resource: &Resource, verb: &str, suffix: &str, model: &str) -> Value {
    let scope = if resource.namespaced && suffix.is_empty() { "Namespaced" } else { "" };
    let (group, version, kind) = (camel(&resource.group), camel(&resource.version), &resource.kind);
    json!({
        "operationId": format!("{verb}{group}{version}{scope}{kind}{suffix}"),
        "responses": {
            "200": {
                "description": "OK",
                "content": {"application/json": {"schema": {"$ref": format!("#/components/schemas/{model}")}}},
            },
        },
        "x-kubernetes-action": verb,
        "x-kubernetes-group-version-kind": kind_of(resource),
    })
}

fn kind_of(resource: &Resource) -> Value {
    json!({"group": resource.group, "version": resource.version, "kind": resource.kind})
}

fn schema(resource: &Resource) -> Value {
    json!({
        "type": "object",
        "description": format!("{} as it is stored: this server does not know its fields.", resource.kind),
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        },
        "x-kubernetes-group-version-kind": [kind_of(resource)],
        "x-kubernetes-preserve-unknown-fields": true,
    })
}

fn list_schema(resource: &Resource, model: &str) -> Value {
    let mut kind = kind_of(resource);
    kind["kind"] = json!(format!("{}List", resource.kind));
    json!({
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "items": {"type": "array", "items": {"$ref": format!("#/components/schemas/{model}")}},
        },
        "x-kubernetes-group-version-kind": [kind],
    })
}

/// Returns the model name, such as `test.matrix.v1.Widget`: the group is reversed, as in the models of custom
/// resources.
fn model_name(resource: &Resource) -> String {
    let group = if resource.group.is_empty() { "core" } else { &resource.group };
    let reversed: Vec<&str> = group.rsplit('.').collect();
    format!("{}.{}.{}", reversed.join("."), resource.version, resource.kind)
}

/// Returns `matrix.test` as `MatrixTest`, and the core group as `Core`.
fn camel(text: &str) -> String {
    let text = if text.is_empty() { "core" } else { text };
    text.split(|c: char| !c.is_ascii_alphanumeric())
        .filter_map(|word| word.split_at_checked(1))
        .map(|(first, rest)| first.to_ascii_uppercase() + rest)
        .collect()
}
