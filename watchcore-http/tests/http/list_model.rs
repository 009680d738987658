//! Lists compared with a simple model: random writes and compactions, lists from every start, pages read between
//! writes.

use crate::support::ground::{SHOP, WIDGETS, widget, widget_key};
use crate::support::{Client, Ground};
use proptest::prelude::*;
use std::collections::BTreeMap;
use watchcore::Change;

const COLORS: [&str; 3] = ["red", "green", "blue"];

/// A write; keys are numbers of [`name_of`].
#[derive(Clone, Debug)]
enum Write {
    Put(usize, usize),
    /// Puts a value that is not an object.
    Junk(usize),
    Delete(usize),
    /// Compacts everything but this many newest revisions.
    Compact(u64),
}

#[derive(Clone, Copy, Debug)]
enum Select {
    All,
    Label(usize),
    Color(usize),
    NotColor(usize),
    NotName(usize),
}

#[derive(Clone, Copy, Debug)]
enum From {
    Consistent,
    Any,
    /// At least a revision this many below the newest.
    AtLeast(u64),
    Exact(u64),
}

/// A list, with the writes that follow each of its pages.
#[derive(Clone, Debug)]
struct Asked {
    shop_only: bool,
    select: Select,
    from: From,
    limit: usize,
    between: Vec<Vec<Write>>,
}

/// The value at a key: its color (`None`: not an object), and its revision.
type StoredObject = (Option<&'static str>, u64);

/// All states, by revision.
struct Model {
    states: Vec<BTreeMap<String, StoredObject>>,
    compacted: u64,
}

fn name_of(at: usize) -> String {
    format!("{}/w{}", if at.is_multiple_of(3) { "other" } else { "shop" }, at / 2)
}

impl Model {
    fn revision(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    fn write(&mut self, ground: &Ground, write: &Write) {
        let revision = self.revision() + 1;
        let mut state = self.states[self.states.len() - 1].clone();
        match *write {
            Write::Compact(back) => {
                let to = self.revision().saturating_sub(back);
                if to > self.compacted {
                    ground.writer().compact(to).unwrap();
                    self.compacted = to;
                }
                return;
            }
            Write::Put(at, color) => {
                let (name, color) = (name_of(at), COLORS[color]);
                ground.put_widget(&name, color);
                state.insert(name, (Some(color), revision));
            }
            Write::Junk(at) => {
                ground.put(&widget_key(&name_of(at)), "[]");
                state.insert(name_of(at), (None, revision));
            }
            Write::Delete(at) => {
                if state.remove(&name_of(at)).is_none() {
                    return;
                }
                ground.apply(&[Change::delete(widget_key(&name_of(at)).as_bytes())]);
            }
        }
        self.states.push(state);
        assert_eq!(ground.revision(), self.revision());
    }

    /// Returns the matching objects of a list from `next` on in a state, and the keys of all values.
    fn matching(&self, asked: &Asked, revision: u64, next: &str) -> (Vec<(String, StoredObject)>, Vec<String>) {
        let state = &self.states[revision as usize];
        let range: Vec<_> = state
            .iter()
            .filter(|(name, _)| !asked.shop_only || name.starts_with("shop/"))
            .filter(|(name, _)| name.as_str() >= next)
            .map(|(name, lives)| (name.clone(), *lives))
            .collect();
        let keys = range.iter().map(|(name, _)| name.clone()).collect();
        let matches = |name: &str, color: Option<&str>| match asked.select {
            Select::All => true,
            Select::Label(wanted) | Select::Color(wanted) => color == Some(COLORS[wanted]),
            Select::NotColor(other) => color != Some(COLORS[other]),
            Select::NotName(at) => name.split_once('/').unwrap().1 != name_of(at).split_once('/').unwrap().1,
        };
        (range.into_iter().filter(|(name, (color, _))| matches(name, *color)).collect(), keys)
    }
}

impl Asked {
    fn query(&self, newest: u64) -> String {
        let select = match self.select {
            Select::All => String::new(),
            Select::Label(at) => format!("&labelSelector=app%3D{}", COLORS[at]),
            Select::Color(at) => format!("&fieldSelector=spec.color%3D{}", COLORS[at]),
            Select::NotColor(at) => format!("&fieldSelector=spec.color!%3D{}", COLORS[at]),
            Select::NotName(at) => {
                format!("&fieldSelector=metadata.name!%3D{}", name_of(at).split_once('/').unwrap().1)
            }
        };
        let from = match self.from {
            From::Consistent => String::new(),
            From::Any => "&resourceVersion=0".into(),
            From::AtLeast(back) => {
                format!("&resourceVersionMatch=NotOlderThan&resourceVersion={}", newest.saturating_sub(back).max(1))
            }
            From::Exact(back) => {
                format!("&resourceVersionMatch=Exact&resourceVersion={}", newest.saturating_sub(back).max(1))
            }
        };
        format!("limit={}{select}{from}", self.limit)
    }

    /// Reads the whole list, page by page, and compares each page.
    async fn check(&self, client: &mut Client, ground: &Ground, model: &mut Model) {
        let path = if self.shop_only { SHOP } else { WIDGETS };
        let newest = model.revision();
        let mut revision = match self.from {
            From::Exact(back) => newest.saturating_sub(back).max(1),
            _ => newest,
        };
        let (mut query, mut next, mut between) = (self.query(newest), String::new(), self.between.iter());
        let selectors = self.query(newest).split('&').filter(|part| part.contains("Selector")).collect::<String>();
        loop {
            let answer = client.answer("GET", &format!("{path}?{query}"), &[]).await;
            let json = answer.json();
            let token = json["metadata"]["continue"].as_str().map(|token| {
                let token: String = token.bytes().map(|byte| format!("%{byte:02x}")).collect();
                format!("limit={}&{selectors}&continue={token}", self.limit)
            });
            if revision < model.compacted {
                assert_eq!(answer.status(), (410, "Expired".into()), "{query}");
                assert_eq!(token.is_some(), query.contains("continue"), "{query}");
                let Some(token) = token else { return };
                (query, revision) = (token, model.revision());
                continue;
            }
            assert_eq!(json["metadata"]["resourceVersion"], revision.to_string(), "{query}");
            let (mut expected, keys) = model.matching(self, revision, &next);
            if self.limit > 0 {
                expected.truncate(self.limit);
            }
            let is_full = self.limit > 0 && expected.len() == self.limit;
            let last = expected.last().map(|(name, _)| format!("{name}\0")).filter(|_| is_full);
            let behind = last.as_ref().map_or(0, |last| keys.iter().filter(|key| *key > last).count());
            let shown: Vec<_> = expected.iter().filter(|(_, (color, _))| color.is_some()).collect();
            let items = json["items"].as_array().unwrap();
            assert_eq!(items.len(), shown.len(), "{query}: {json}");
            for (item, (name, (color, since))) in items.iter().zip(shown) {
                let mut whole = widget(name, color.unwrap());
                whole["metadata"]["resourceVersion"] = since.to_string().into();
                assert_eq!(*item, whole, "{query}");
            }
            assert_eq!(token.is_some(), behind > 0, "{query}: {json}");
            let counted = json["metadata"]["remainingItemCount"].as_u64();
            assert_eq!(counted, (behind > 0 && matches!(self.select, Select::All)).then_some(behind as u64), "{query}");
            let Some(token) = token else { return };
            (query, next) = (token, last.unwrap());
            between.next().into_iter().flatten().for_each(|write| model.write(ground, write));
            if revision < model.compacted {
                continue;
            }
        }
    }
}

fn any_write() -> impl Strategy<Value = Write> {
    prop_oneof![
        6 => (0..12usize, 0..3usize).prop_map(|(at, color)| Write::Put(at, color)),
        1 => (0..12usize).prop_map(Write::Junk),
        2 => (0..12usize).prop_map(Write::Delete),
        1 => (0..6u64).prop_map(Write::Compact),
    ]
}

fn any_list() -> impl Strategy<Value = Asked> {
    let select = prop_oneof![
        3 => Just(Select::All),
        1 => (0..3usize).prop_map(Select::Label),
        1 => (0..3usize).prop_map(Select::Color),
        1 => (0..3usize).prop_map(Select::NotColor),
        1 => (0..12usize).prop_map(Select::NotName),
    ];
    let from = prop_oneof![
        Just(From::Consistent),
        Just(From::Any),
        (0..5u64).prop_map(From::AtLeast),
        (0..8u64).prop_map(From::Exact),
    ];
    let between = prop::collection::vec(prop::collection::vec(any_write(), 0..4), 0..4);
    (any::<bool>(), select, from, 0..4usize, between).prop_map(|(shop_only, select, from, limit, between)| Asked {
        shop_only,
        select,
        from,
        limit,
        between,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lists_are_those_of_a_model(rounds in prop::collection::vec((prop::collection::vec(any_write(), 1..12), any_list()), 1..6)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let ground = Ground::start().await;
            let mut client = Client::connect(ground.address).await;
            let mut model = Model { states: vec![BTreeMap::new()], compacted: 0 };
            // Revision 1 exists in every run, because 0 means "any" in a query.
            model.write(&ground, &Write::Put(0, 0));
            for (writes, asked) in &rounds {
                writes.iter().for_each(|write| model.write(&ground, write));
                asked.check(&mut client, &ground, &mut model).await;
            }
        });
    }
}
