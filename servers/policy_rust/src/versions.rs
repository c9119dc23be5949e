//! Which versions there are, which one answers, what an operator took back or pinned.
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use openclaw_rl_client::{
    Code, Error, Result,
    v1::{PolicyState, VersionManifest},
};
use prost::Message as _;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{clock, playbook, store::Store};

/// Versions kept for a way back, beside the base and the active one.
const KEEP: usize = 3;
/// A version's number is at most so much higher than the highest that was ever active.
pub const FARTHEST: i64 = 1 << 20;

/// What answers now.
#[derive(Default)]
pub struct Active {
    pub version: i64,
    /// The playbook as it stands in the prompt.
    pub text: String,
    pub entries: usize,
}

#[derive(Clone, Default)]
struct Record {
    active: i64,
    highest: i64,
    /// Were active once and are on disk; the base is not among them.
    kept: BTreeSet<i64>,
    withdrawn: BTreeSet<i64>,
    activated_at: f64,
    pinned_at: Option<f64>,
    pin_reason: String,
}

struct Inner {
    record: Record,
    /// All on disk, and the base.
    versions: BTreeMap<i64, (VersionManifest, Bytes)>,
    active: Arc<Active>,
    problems: Vec<String>,
}

/// Changed by one caller at a time; each change is on disk before it holds.
pub struct Versions {
    store: Arc<Store>,
    model: String,
    model_id: String,
    inner: Mutex<Inner>,
    changed: watch::Sender<PolicyState>,
}

impl Versions {
    /// Finds out what is there. The version that was active last answers; when it is gone or damaged, the newest good
    /// one that was not taken back.
    pub fn open(store: Arc<Store>, model: &str, model_id: &str) -> io::Result<Self> {
        let base = playbook::spec(playbook::EMPTY);
        let manifest = VersionManifest {
            digest: playbook::manifest_digest(&base),
            model_id: model_id.into(),
            algorithm: "base".into(),
            total_bytes: playbook::EMPTY.len() as i64,
            ..Default::default()
        };
        let mut versions = BTreeMap::from([(0, (manifest, Bytes::from_static(playbook::EMPTY)))]);
        let mut problems = Vec::new();
        for (version, manifest, data) in store.versions()? {
            let manifest = VersionManifest::decode(manifest).unwrap_or_default();
            let whole = playbook::manifest_digest(&playbook::spec(&data)) == manifest.digest;
            if !whole || playbook::parse(&data).is_err() {
                problems.push(format!("version {version} is damaged and not used any more"));
            } else if manifest.model_id == model_id {
                versions.insert(version, (manifest, data));
            }
        }
        let mut record = store.meta("record")?.and_then(|text| read(&text)).unwrap_or_default();
        record.kept.retain(|version| versions.contains_key(version));
        let wanted = record.active;
        let good = |version: &i64| !record.withdrawn.contains(version);
        if !versions.contains_key(&wanted) {
            record.active = record.kept.iter().rev().copied().find(good).unwrap_or(0);
            problems.push(format!(
                "version {wanted} was active but is not there; version {} answers instead",
                record.active
            ));
        }
        if record.activated_at == 0.0 {
            record.activated_at = clock::seconds();
        }
        let this = Self {
            store,
            model: model.into(),
            model_id: model_id.into(),
            inner: Mutex::new(Inner { record: record.clone(), versions, active: Arc::default(), problems }),
            changed: watch::Sender::new(PolicyState::default()),
        };
        this.take(&mut this.inner(), record);
        Ok(this)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What answers now. A response keeps what it began with.
    pub fn active(&self) -> Arc<Active> {
        Arc::clone(&self.inner().active)
    }

    pub fn state(&self) -> PolicyState {
        self.changed.borrow().clone()
    }

    /// The state now, and at each change the newest.
    pub fn subscribe(&self) -> watch::Receiver<PolicyState> {
        self.changed.subscribe()
    }

    pub fn problems(&self) -> Vec<String> {
        self.inner().problems.clone()
    }

    /// Since when, and why, the active version is pinned; empty when it is not.
    pub fn pin(&self) -> String {
        let record = &self.inner().record;
        let why = if record.pin_reason.is_empty() { "no reason given" } else { &record.pin_reason };
        match record.pinned_at {
            None => String::new(),
            Some(_) => format!("version {} is pinned ({why})", record.active),
        }
    }

    /// Manifests of the versions that can be activated, ascending.
    pub fn manifests(&self) -> Vec<VersionManifest> {
        let inner = self.inner();
        let kept = std::iter::once(0).chain(inner.record.kept.iter().copied());
        kept.filter_map(|version| Some(inner.versions.get(&version)?.0.clone())).collect()
    }

    /// Manifest and playbook of a version on disk, whether or not it was ever active.
    pub fn get(&self, version: i64) -> Option<(VersionManifest, Bytes)> {
        self.inner().versions.get(&version).cloned()
    }

    /// A version that is complete and checked; it answers when it is committed.
    pub fn add(&self, manifest: &VersionManifest, data: Bytes) -> io::Result<()> {
        let mut inner = self.inner();
        self.store.add_version(manifest.version, &manifest.encode_to_vec(), &data)?;
        inner.versions.insert(manifest.version, (manifest.clone(), data));
        Ok(())
    }

    /// Makes a version the active one that was not active before; `admit` is asked when nobody can come between it and
    /// the switch.
    pub fn commit<E>(
        &self,
        version: i64,
        admit: impl FnOnce(&PolicyState) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E>
    where
        E: From<io::Error>,
    {
        let mut inner = self.inner();
        admit(&self.changed.borrow())?;
        let mut after = inner.record.clone();
        let mut others: Vec<i64> = after.kept.iter().copied().chain([after.active]).collect();
        others.retain(|other| ![0, version].contains(other));
        others.sort_by_key(|other| (!after.withdrawn.contains(other), *other)); // first to go: taken back, then old
        others.dedup();
        after.kept = others.iter().rev().take(KEEP).copied().chain([version]).collect();
        after.active = version;
        after.highest = after.highest.max(version);
        after.activated_at = clock::seconds();
        let gone: Vec<i64> = inner.versions.keys().copied().filter(|v| *v != 0 && !after.kept.contains(v)).collect();
        self.store.write_record(&write(&after), &gone)?;
        gone.iter().for_each(|version| drop(inner.versions.remove(version)));
        self.take(&mut inner, after);
        Ok(())
    }

    /// Goes back to a kept version, or forward again; pins, or lifts a pin.
    pub fn activate(&self, version: Option<i64>, reason: &str, pin: Option<bool>) -> Result<PolicyState> {
        let mut inner = self.inner();
        let before = inner.record.clone();
        let target = version.unwrap_or(before.active);
        let mut after = before.clone();
        match pin {
            Some(true) => {
                after.pinned_at = Some(clock::seconds());
                after.pin_reason = reason.chars().take(500).collect();
            }
            Some(false) => after.pinned_at = None,
            None if target != before.active && before.pinned_at.is_some() => {
                drop(inner);
                let text =
                    format!("{}: `openclaw-rl unpin` lifts the pin, `openclaw-rl pin {target}` moves it", self.pin());
                return Err(Error::new(Code::FailedPrecondition, "PINNED", text));
            }
            None => {}
        }
        if target != before.active {
            if target != 0 && !before.kept.contains(&target) {
                let here: Vec<String> = before.kept.iter().map(i64::to_string).collect();
                let text = format!(
                    "version {target} can't be activated: it is not kept here; those that are: 0 {}",
                    here.join(" ")
                );
                return Err(Error::new(Code::FailedPrecondition, "VERSION_UNKNOWN", text));
            }
            // All after it are taken back; it, and what it was made from, are in their rights again.
            after.withdrawn.extend(target + 1..=before.highest);
            let mut ancestor = Some(target);
            while let Some(version) = ancestor {
                after.withdrawn.remove(&version);
                let parent = inner.versions.get(&version).and_then(|(manifest, _)| manifest.parent);
                ancestor = parent.filter(|parent| *parent < version);
            }
            after.active = target;
            after.activated_at = clock::seconds();
        }
        self.store.write_record(&write(&after), &[]).map_err(|error| {
            let text = format!("it can't be written down, all stays as it was: {error}");
            Error::unavailable(text, std::time::Duration::from_secs(1))
        })?;
        if target != before.active {
            log!("version {target} was activated in place of {} by an operator: {reason}", before.active);
        }
        self.take(&mut inner, after);
        Ok(self.state())
    }

    /// Takes versions back for good and deletes them; the active one stays. Gives the number of those that were here.
    pub fn withdraw(&self, versions: &[i64]) -> io::Result<usize> {
        let mut inner = self.inner();
        let mut after = inner.record.clone();
        let possible = |v: &i64| *v > 0 && *v <= after.highest + FARTHEST && *v != after.active;
        let gone: BTreeSet<i64> = versions.iter().copied().filter(possible).collect();
        let Some(&highest) = gone.last() else {
            return Ok(0);
        };
        after.kept.retain(|version| !gone.contains(version));
        after.withdrawn.extend(&gone);
        after.highest = after.highest.max(highest);
        self.store.write_record(&write(&after), &gone.iter().copied().collect::<Vec<_>>())?;
        let there = gone.iter().filter(|version| inner.versions.remove(version).is_some()).count();
        self.take(&mut inner, after);
        Ok(there)
    }

    /// The record holds now; whoever watches is told.
    fn take(&self, inner: &mut Inner, record: Record) {
        let (manifest, data) = &inner.versions[&record.active];
        let texts = playbook::parse(data).unwrap_or_default(); // looked at when it came
        let state = PolicyState {
            active_version: record.active,
            active_digest: manifest.digest.clone(),
            kept_versions: std::iter::once(0).chain(record.kept.iter().copied()).collect(),
            highest_version: record.highest,
            withdrawn_versions: record.withdrawn.iter().copied().collect(),
            model: self.model.clone(),
            model_id: self.model_id.clone(),
            engine: "openai".into(),
            activated_at: Some(clock::timestamp(record.activated_at)),
            accepts_weights: true,
            pinned: record.pinned_at.is_some(),
            ..Default::default()
        };
        inner.active =
            Arc::new(Active { version: record.active, text: playbook::render(&texts), entries: texts.len() });
        inner.record = record;
        self.changed.send_if_modified(|known| {
            let other = *known != state;
            *known = state;
            other
        });
    }
}

fn write(record: &Record) -> String {
    json!({
        "active": record.active, "highest": record.highest, "kept": record.kept, "withdrawn": record.withdrawn,
        "activated_at": record.activated_at, "pinned_at": record.pinned_at, "pin_reason": record.pin_reason,
    })
    .to_string()
}

fn read(text: &str) -> Option<Record> {
    let value: Value = serde_json::from_str(text).ok()?;
    let numbers = |name: &str| Some(value[name].as_array()?.iter().filter_map(Value::as_i64).collect());
    Some(Record {
        active: value["active"].as_i64()?,
        highest: value["highest"].as_i64()?,
        kept: numbers("kept")?,
        withdrawn: numbers("withdrawn")?,
        activated_at: value["activated_at"].as_f64()?,
        pinned_at: value["pinned_at"].as_f64(),
        pin_reason: value["pin_reason"].as_str()?.into(),
    })
}
