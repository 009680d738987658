//! Selection of objects: translates a request's path, label selector and field selector into a filter of the core.
//!
//! A field selector names fields as the resource declares them; the core names attributes of its cache, so each name is
//! translated. Name and namespace are parts of the key: if both are known, the filter is that one key; if only the
//! namespace is known, it is a range of keys; otherwise they are attributes that the cache derives from the key's
//! segments.

use crate::catalog::Served;
use crate::object::Resource;
use crate::request::Params;
use crate::status::Refusal;
use watchcore::{FieldRequirement, Filter, KeyValue, Range};

/// The objects that a request selects.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    /// The filter, which includes `range`.
    pub(crate) filter: Filter,
    /// A range that contains every matching key.
    pub(crate) range: Range,
    /// Whether every key of the range matches.
    pub(crate) only_range: bool,
}

/// The requirements on a part of the key: its namespace, or its name.
#[derive(Default)]
struct SegmentRequirements {
    /// The value that the part must have.
    exactly: Option<String>,
    /// Values that the part must not have.
    not: Vec<String>,
    /// Whether two requirements contradict each other.
    contradiction: bool,
}

/// The requirements of a field selector, by where they are evaluated.
#[derive(Default)]
struct SelectorRequirements {
    namespace: SegmentRequirements,
    name: SegmentRequirements,
    /// Terms of a field selector of the core.
    attributes: Vec<String>,
}

impl Selection {
    /// Returns the objects that a path and parameters select.
    ///
    /// # Errors
    /// 404 if the path has a namespace although the resource has none, or lacks one; 400 if a selector does not parse,
    /// names an undeclared field, or requires another name than the path.
    pub(crate) fn of(
        served: &Served,
        namespace: Option<&str>,
        name: Option<&str>,
        params: &Params,
    ) -> Result<Selection, Refusal> {
        let resource = &served.resource;
        if namespace.is_some() && !resource.namespaced || name.is_some() && namespace.is_some() != resource.namespaced {
            return Err(Refusal::no_such_path());
        }
        let mut demands = SelectorRequirements::default();
        for term in field_requirements(params.field_selector.as_deref().unwrap_or_default())? {
            demands.add(served, term)?;
        }
        if let (Some(path), Some(field)) = (name, &demands.name.exactly)
            && path != field
        {
            return Err(Refusal::bad_request("fieldSelector metadata.name doesn't match requested name"));
        }
        for (part, path) in [(&mut demands.namespace, namespace), (&mut demands.name, name)] {
            if let Some(path) = path {
                part.require(true, path.to_owned());
            }
        }
        if !resource.namespaced {
            demands.namespace.require(true, String::new());
        }
        let labels = params.label_selector.as_deref().unwrap_or_default();
        let labelled = Filter::any().labels(labels).map_err(|error| Refusal::from(&error))?;
        demands.selection(served, labelled)
    }
}

impl SegmentRequirements {
    fn require(&mut self, equal: bool, value: String) {
        if !equal {
            self.not.push(value);
        } else if self.exactly.as_ref().is_some_and(|other| *other != value) {
            self.contradiction = true;
        } else {
            self.exactly = Some(value);
        }
    }

    /// Whether a value can meet the requirements. If the exact value is known, the exclusions are checked against it
    /// and dropped.
    fn is_satisfiable(&mut self) -> bool {
        let Some(exactly) = &self.exactly else { return !self.contradiction };
        if self.contradiction || self.not.contains(exactly) {
            return false;
        }
        self.not.clear();
        true
    }

    fn matches(&self, part: &str) -> bool {
        self.exactly.as_ref().is_none_or(|exactly| exactly == part) && self.not.iter().all(|not| not != part)
    }

    /// Appends the requirements as terms of a field selector of the core.
    fn terms(&self, attribute: &str, out: &mut Vec<String>) {
        let term = |equal, value: &String| {
            FieldRequirement { name: attribute.into(), equal, value: value.as_str().into() }.to_string()
        };
        out.extend(self.exactly.iter().map(|value| term(true, value)));
        out.extend(self.not.iter().map(|value| term(false, value)));
    }
}

/// Whether a text can be a namespace or name in a key.
fn is_segment(text: &str) -> bool {
    !text.is_empty() && !text.contains('/')
}

impl SelectorRequirements {
    fn add(&mut self, served: &Served, term: FieldRequirement) -> Result<(), Refusal> {
        match &*term.name {
            "metadata.name" => self.name.require(term.equal, term.value.into()),
            "metadata.namespace" if served.resource.namespaced => self.namespace.require(term.equal, term.value.into()),
            name => {
                let field = served.resource.fields.iter().find(|field| field.name == name);
                let attribute = field
                    .map(|field| field.attribute())
                    .filter(|attribute| served.cache.attribute_number(attribute).is_some())
                    .ok_or_else(|| Refusal::bad_request(format!("field label not supported: {name}")))?;
                self.attributes.push(FieldRequirement { name: attribute.into(), ..term }.to_string());
            }
        }
        Ok(())
    }

    /// Builds the selection. Requirements on namespace and name that the range does not express are checked by
    /// attributes or, if the cache has none, by a predicate on the key.
    fn selection(mut self, served: &Served, labelled: Filter) -> Result<Selection, Refusal> {
        let resource = &served.resource;
        if !self.namespace.is_satisfiable() || !self.name.is_satisfiable() {
            return Ok(empty_selection(resource));
        }
        let namespace = if resource.namespaced { self.namespace.exactly.take() } else { None };
        if namespace.as_deref().is_some_and(|text| !is_segment(text))
            || self.name.exactly.as_deref().is_some_and(|text| !is_segment(text))
        {
            return Ok(empty_selection(resource));
        }
        let range = match self.name.exactly.take_if(|_| namespace.is_some() || !resource.namespaced) {
            Some(name) => Range::key(resource.key(namespace.as_deref(), &name)),
            None => resource.range(namespace.as_deref()),
        };
        let mut terms = std::mem::take(&mut self.attributes);
        let any = |part: &SegmentRequirements| part.exactly.is_none() && part.not.is_empty();
        let by_key_alone = any(&self.name) && self.namespace.not.is_empty();
        let only_range = by_key_alone && terms.is_empty() && labelled == Filter::any();
        let mut filter = labelled;
        let has = |name: &str| served.cache.attribute_number(name).is_some();
        let (by_namespace, by_name) = (resource.namespace_attribute(), resource.name_attribute());
        if by_namespace.as_deref().is_none_or(has) && has(&by_name) {
            if let Some(by_namespace) = by_namespace {
                self.namespace.terms(&by_namespace, &mut terms);
            }
            self.name.terms(&by_name, &mut terms);
        } else if !by_key_alone {
            filter = filter.named_predicate(self.name(), self.key_predicate(resource.clone()));
        }
        let filter = filter.fields(terms.join(",")).map_err(|error| Refusal::from(&error))?;
        Ok(Selection { filter: filter.range(range.clone()), range, only_range })
    }

    /// Returns the name of the predicate of [`SelectorRequirements::key_predicate`], which continue tokens carry. Equal requirements
    /// in another order have the same name.
    fn name(&self) -> String {
        let mut terms = Vec::new();
        self.namespace.terms("metadata.namespace", &mut terms);
        self.name.terms("metadata.name", &mut terms);
        terms.sort_unstable();
        terms.dedup();
        format!("keys:{}", terms.join(","))
    }

    /// Returns a predicate that checks the requirements on namespace and name against the key.
    fn key_predicate(self, resource: Resource) -> impl Fn(&KeyValue) -> bool + Send + Sync + 'static {
        move |kv| {
            resource.identity(kv.key()).is_some_and(|(namespace, name)| {
                self.namespace.matches(namespace.unwrap_or_default()) && self.name.matches(name)
            })
        }
    }
}

/// Returns the selection of no object.
fn empty_selection(resource: &Resource) -> Selection {
    let range = resource.range(None);
    Selection { filter: Filter::none().range(range.clone()), range, only_range: false }
}

/// Parses the requirements of a field selector.
///
/// # Errors
/// 400 if it does not parse.
pub(crate) fn field_requirements(selector: &str) -> Result<Vec<FieldRequirement>, Refusal> {
    FieldRequirement::parse(selector).map_err(|error| Refusal::from(&error))
}

#[cfg(test)]
mod tests;
