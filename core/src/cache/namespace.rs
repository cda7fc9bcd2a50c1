//! Which requests may share prefixes: same model and same salt, compared as they are and never as joined strings.

use crate::bug::seeded;
use std::{collections::BTreeMap, sync::Arc};

use super::hash;

/// Membership of a namespace; move-only, given back with [`Namespaces::close`].
#[derive(Debug)]
#[must_use = "a namespace stays open until it is closed"]
pub struct Namespace {
    pub(super) index: u32,
    /// Hash that its chains start from.
    pub root: u64,
}

type Key = (String, Option<String>);

#[derive(Debug)]
struct Entry {
    key: Key,
    root: u64,
    /// Of the key, for events.
    salt: Option<Arc<str>>,
    /// Requests and first pages in it.
    users: u32,
}

/// All namespaces in use; one without users is forgotten, so a million salts leave nothing behind.
#[derive(Debug, Default)]
pub struct Namespaces {
    by_key: BTreeMap<Key, u32>,
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
}

impl Namespaces {
    /// Join the namespace of a model and a salt.
    pub fn open(&mut self, secret: [u64; 2], model_id: &str, salt: Option<&str>) -> Namespace {
        let (ignores_all, ignores_empty) = (seeded!(SaltIsIgnored), seeded!(EmptySaltIsNoSalt));
        let salt = salt.filter(|salt| !(ignores_all || ignores_empty && salt.is_empty()));
        let key = (model_id.to_owned(), salt.map(str::to_owned));
        let index = match self.by_key.get(&key) {
            Some(&index) => index,
            None => {
                let root = hash::root(secret, model_id, salt);
                let entry = Entry { key: key.clone(), root, salt: salt.map(Arc::from), users: 0 };
                let index = self.free.pop().unwrap_or(self.entries.len() as u32);
                match self.entries.get_mut(index as usize) {
                    Some(slot) => *slot = Some(entry),
                    None => self.entries.push(Some(entry)),
                }
                // Room to forget every namespace without allocating.
                self.free.reserve(self.entries.len());
                self.by_key.insert(key, index);
                index
            }
        };
        self.add_user(index);
        Namespace { index, root: self.entry(index).root }
    }

    /// Leave it.
    pub fn close(&mut self, namespace: Namespace) {
        self.remove_user(namespace.index);
    }

    pub(super) fn add_user(&mut self, index: u32) {
        self.entry(index).users += 1;
    }

    pub(super) fn remove_user(&mut self, index: u32) {
        let entry = self.entry(index);
        entry.users -= 1;
        if entry.users == 0 && !seeded!(NamespaceIsNeverForgotten) {
            let entry = self.entries[index as usize].take().expect("open");
            self.by_key.remove(&entry.key);
            self.free.push(index);
        }
    }

    fn entry(&mut self, index: u32) -> &mut Entry {
        self.entries[index as usize].as_mut().expect("a namespace with users is open")
    }

    /// The salt that requests in it have.
    pub(super) fn salt(&self, index: u32) -> Option<Arc<str>> {
        self.entries[index as usize].as_ref().expect("open").salt.clone()
    }

    /// How many are in use.
    pub fn n_open(&self) -> usize {
        self.by_key.len()
    }
}
