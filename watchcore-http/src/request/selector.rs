//! Which objects of a resource a request selects: its path, its label selector and its field selector as a filter of the
//! core.
//!
//! A field selector names fields as the resource declares them, the core names attributes of its cache. So each name of the
//! selector is translated. Name and namespace are parts of the key: where both are known, the filter is that one key; where the
//! namespace is known, it is a range; otherwise they are attributes, which the cache has by the segments of the key.

use crate::catalog::{Resource, Served};
use crate::request::Params;
use crate::status::Refusal;
use watchcore::{FieldRequirement, Filter, KeyValue, Range};

/// The objects that a request selects.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    /// With its range.
    pub(crate) filter: Filter,
    /// Keys that can match; all others cannot.
    pub(crate) range: Range,
    /// Whether every key of the range matches.
    pub(crate) only_range: bool,
}

/// What is required of a part of the key: its namespace, or its name.
#[derive(Default)]
struct PartDemand {
    /// It is this.
    exactly: Option<String>,
    /// It is none of these.
    not: Vec<String>,
    /// Two requirements that no text fulfils.
    contradiction: bool,
}

/// What a field selector requires, sorted by where it is looked up.
#[derive(Default)]
struct FieldDemands {
    namespace: PartDemand,
    name: PartDemand,
    /// A field selector of the core.
    attributes: Vec<String>,
}

impl Selection {
    /// What a path and parameters select.
    ///
    /// # Errors
    /// 404 where the path has a namespace that the resource has not, or lacks one; 400 where a selector does not parse,
    /// names a field that is not declared, or another name than the path.
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
        let mut demands = FieldDemands::default();
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

impl PartDemand {
    fn require(&mut self, equal: bool, value: String) {
        if !equal {
            self.not.push(value);
        } else if self.exactly.as_ref().is_some_and(|other| *other != value) {
            self.contradiction = true;
        } else {
            self.exactly = Some(value);
        }
    }

    /// Whether a segment of a key can be this. Where it is known, what it must not be is answered with it.
    fn possible(&mut self) -> bool {
        let Some(exactly) = &self.exactly else { return !self.contradiction };
        if self.contradiction || self.not.contains(exactly) {
            return false;
        }
        self.not.clear();
        true
    }

    fn holds(&self, part: &str) -> bool {
        self.exactly.as_ref().is_none_or(|exactly| exactly == part) && self.not.iter().all(|not| not != part)
    }

    /// As terms of a field selector of the core; nothing where nothing is left to require.
    fn terms(&self, attribute: &str, out: &mut Vec<String>) {
        let term = |equal, value: &String| {
            FieldRequirement { name: attribute.into(), equal, value: value.as_str().into() }.to_string()
        };
        out.extend(self.exactly.iter().map(|value| term(true, value)));
        out.extend(self.not.iter().map(|value| term(false, value)));
    }
}

/// Whether a segment of a key may be this: a namespace or a name.
fn is_segment(text: &str) -> bool {
    !text.is_empty() && !text.contains('/')
}

impl FieldDemands {
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

    /// The filter, and its range. What is left of namespace and name is asked of attributes, or, where the cache has
    /// none, of the key.
    fn selection(mut self, served: &Served, labelled: Filter) -> Result<Selection, Refusal> {
        let resource = &served.resource;
        if !self.namespace.possible() || !self.name.possible() {
            return Ok(nothing(resource));
        }
        let namespace = if resource.namespaced { self.namespace.exactly.take() } else { None };
        if namespace.as_deref().is_some_and(|text| !is_segment(text))
            || self.name.exactly.as_deref().is_some_and(|text| !is_segment(text))
        {
            return Ok(nothing(resource));
        }
        let range = match self.name.exactly.take_if(|_| namespace.is_some() || !resource.namespaced) {
            Some(name) => Range::key(resource.key(namespace.as_deref(), &name)),
            None => resource.range(namespace.as_deref()),
        };
        let mut terms = std::mem::take(&mut self.attributes);
        let any = |part: &PartDemand| part.exactly.is_none() && part.not.is_empty();
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
            filter = filter.named_predicate(self.name(), self.of_keys(resource.clone()));
        }
        let filter = filter.fields(terms.join(",")).map_err(|error| Refusal::from(&error))?;
        Ok(Selection { filter: filter.range(range.clone()), range, only_range })
    }

    /// The name of the predicate [`FieldDemands::of_keys`], for the tokens of its pages: the same for equal demands,
    /// whatever their order was.
    fn name(&self) -> String {
        let mut terms = Vec::new();
        self.namespace.terms("metadata.namespace", &mut terms);
        self.name.terms("metadata.name", &mut terms);
        terms.sort_unstable();
        terms.dedup();
        format!("keys:{}", terms.join(","))
    }

    /// What is required of namespace and name, asked of the key itself.
    fn of_keys(self, resource: Resource) -> impl Fn(&KeyValue) -> bool + Send + Sync + 'static {
        move |kv| {
            resource.identity(kv.key()).is_some_and(|(namespace, name)| {
                self.namespace.holds(namespace.unwrap_or_default()) && self.name.holds(name)
            })
        }
    }
}

/// The selection of no object.
fn nothing(resource: &Resource) -> Selection {
    let range = resource.range(None);
    Selection { filter: Filter::none().range(range.clone()), range, only_range: false }
}

/// The requirements of a field selector.
///
/// # Errors
/// 400 where it does not parse.
pub(crate) fn field_requirements(selector: &str) -> Result<Vec<FieldRequirement>, Refusal> {
    FieldRequirement::parse(selector).map_err(|error| Refusal::from(&error))
}

#[cfg(test)]
mod tests;
