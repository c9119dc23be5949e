//! The policy server's side of the weight stream: offer, need, chunks, staged, commit, activated; knows nothing of gRPC.
//!
//! What has arrived is on disk and outlives streams and processes: an offer that comes again goes on where it ended.
use std::{io, sync::Arc};

use bytes::Bytes;
use openclaw_rl_client::v1::{
    PolicyState, SyncWeightsRequest, SyncWeightsResponse, TensorEncoding, TensorSpec, TraceContext, VersionManifest,
    WeightAbort, WeightActivated, WeightChunk, WeightNeed, WeightOffer, WeightProgress, WeightRejectReason as Reason,
    WeightRejected, WeightStaged, sync_weights_request::Message as Request, sync_weights_response::Message as Response,
};
use sha2::{Digest as _, Sha256};

use crate::{
    playbook::{self, DTYPE, MAX_BYTES, TENSOR},
    store::Store,
    versions::{FARTHEST, Versions},
};

/// Bytes that may be on their way at once.
const WINDOW: i64 = 16 << 20;

/// A version can't be taken.
pub struct Rejection {
    reason: Reason,
    message: String,
    retryable: bool,
}

type Taken<T> = std::result::Result<T, Rejection>;

fn no<T>(reason: Reason, message: impl Into<String>) -> Taken<T> {
    Err(Rejection {
        reason,
        message: message.into(),
        retryable: false,
    })
}

fn later<T>(reason: Reason, message: impl Into<String>) -> Taken<T> {
    no(reason, message).map_err(|rejection: Rejection| Rejection {
        retryable: true,
        ..rejection
    })
}

impl From<io::Error> for Rejection {
    fn from(error: io::Error) -> Self {
        Self {
            reason: Reason::Storage,
            message: format!("the version can't be stored: {error}"),
            retryable: true,
        }
    }
}

/// The version that is being worked on.
struct Offered {
    manifest: VersionManifest,
    trace: Option<TraceContext>,
    /// The version that was active when it was offered.
    active_then: i64,
    spec: TensorSpec,
    /// What has come of it; `None` when it is on disk already.
    data: Option<Vec<u8>>,
    /// Some of it came with an earlier stream.
    resumed: bool,
    staged: bool,
}

/// One stream at a time.
pub struct Receiver {
    store: Arc<Store>,
    versions: Arc<Versions>,
    offered: Option<Offered>,
    /// Version whose chunks may still be on their way.
    rejected: Option<i64>,
    /// Bytes that may still come, and that came since the last progress.
    credit: i64,
    unreported: i64,
}

impl Receiver {
    pub fn new(store: Arc<Store>, versions: Arc<Versions>) -> Self {
        Self {
            store,
            versions,
            offered: None,
            rejected: None,
            credit: 0,
            unreported: 0,
        }
    }

    /// A new stream begins: nothing is offered.
    pub fn connected(&mut self) {
        (self.offered, self.rejected) = (None, None);
    }

    /// The answers to a message.
    pub fn handle(&mut self, request: SyncWeightsRequest) -> Vec<SyncWeightsResponse> {
        let mut answers = Vec::new();
        let (version, done) = match request.message {
            Some(Request::Offer(offer)) => {
                let manifest = offer.manifest.clone().unwrap_or_default();
                (
                    manifest.version,
                    self.offer(offer, manifest, request.trace, &mut answers),
                )
            }
            Some(Request::Chunk(chunk)) => (chunk.version, self.chunk(chunk, &mut answers)),
            Some(Request::Commit(commit)) if Some(commit.version) == self.rejected => (commit.version, Ok(())),
            Some(Request::Commit(commit)) => (commit.version, self.commit(commit.version, &mut answers)),
            Some(Request::Abort(abort)) => (abort.version, self.abort(abort)),
            None => (0, no(Reason::Protocol, "the message is empty")),
        };
        if let Err(rejection) = done {
            eprintln!("version {version} is not taken: {}", rejection.message);
            if self
                .offered
                .as_ref()
                .is_none_or(|offered| offered.manifest.version == version)
            {
                (self.offered, self.rejected) = (None, Some(version));
            }
            answers.push(Response::Rejected(WeightRejected {
                version,
                reason: rejection.reason.into(),
                message: rejection.message,
                retryable: rejection.retryable,
            }));
        }
        let message = |message| SyncWeightsResponse { message: Some(message) };
        answers.into_iter().map(message).collect()
    }

    fn offer(
        &mut self,
        offer: WeightOffer,
        manifest: VersionManifest,
        trace: Option<TraceContext>,
        answers: &mut Vec<Response>,
    ) -> Taken<()> {
        let state = self.versions.state();
        admit(&manifest, &state)?;
        (self.offered, self.rejected) = (None, None);
        let spec = self.resolve(&offer, &manifest, &state)?;
        let (version, size) = (manifest.version, spec.encoded_bytes);
        let there = self
            .versions
            .get(version)
            .is_some_and(|(known, _)| known.digest == manifest.digest);
        // An instruction that is here already needn't travel: that of the active version, or of the base.
        let local = [state.active_version, 0]
            .iter()
            .filter_map(|version| self.versions.get(*version))
            .find(|(_, data)| Sha256::digest(data)[..] == spec.sha256[..]);
        let mut need = WeightNeed {
            version,
            ..Default::default()
        };
        let data = match (there, local) {
            (true, _) => None,
            (false, Some((_, data))) => Some(data.to_vec()),
            (false, None) => {
                let mut data = self.store.incoming(&transfer(&manifest, &spec))?;
                let whole = data.len() as i64 == size && Sha256::digest(&data)[..] == spec.sha256[..];
                if data.len() as i64 >= size && !whole {
                    self.store.clear_incoming(Some(&transfer(&manifest, &spec)))?;
                    data.clear();
                }
                need.tensors.push(TENSOR.into());
                need.from_byte = data.len() as i64;
                Some(data)
            }
        };
        let resumed = need.from_byte > 0;
        if data.is_some() {
            need.credit_bytes = WINDOW;
        }
        (self.credit, self.unreported) = (WINDOW, 0);
        answers.push(Response::Need(need));
        let trace = trace.or_else(|| manifest.trace.clone());
        let complete = data.as_ref().is_none_or(|data| data.len() as i64 == size);
        self.offered = Some(Offered {
            manifest,
            trace,
            active_then: state.active_version,
            spec,
            data,
            resumed,
            staged: false,
        });
        if complete { self.stage(answers) } else { Ok(()) }
    }

    fn chunk(&mut self, chunk: WeightChunk, answers: &mut Vec<Response>) -> Taken<()> {
        if Some(chunk.version) == self.rejected {
            return Ok(()); // was on its way when the version was rejected
        }
        let due = self
            .offered
            .as_mut()
            .filter(|o| o.manifest.version == chunk.version && !o.staged);
        let Some((data, total)) = due.and_then(|o| Some((o.data.as_mut()?, o.spec.encoded_bytes))) else {
            let text = format!("a chunk of version {}, which is not due", chunk.version);
            return no(Reason::Protocol, text);
        };
        let size = chunk.data.len() as i64;
        if chunk.offset != data.len() as i64 || size == 0 {
            let text = format!(
                "{size} bytes at byte {}; due is byte {} of {total}",
                chunk.offset,
                data.len()
            );
            return later(Reason::BadChunk, text);
        }
        if size > self.credit {
            return no(
                Reason::Protocol,
                format!("{size} bytes were sent where {} were granted", self.credit),
            );
        }
        if crc32c::crc32c(&chunk.data) != chunk.crc32c {
            let text = format!(
                "the chunk at byte {} was damaged on its way: its CRC-32C differs",
                chunk.offset
            );
            return later(Reason::BadChunk, text);
        }
        if chunk.offset + size > total {
            return no(Reason::BadChunk, "there are more bytes than the tensors have");
        }
        self.store.add_incoming(data.len(), &chunk.data)?;
        data.extend_from_slice(&chunk.data);
        let received = data.len() as i64;
        self.credit -= size;
        self.unreported += size;
        if self.unreported * 4 >= WINDOW || received == total {
            answers.push(Response::Progress(WeightProgress {
                version: chunk.version,
                received_bytes: received,
                total_bytes: total,
                credit_bytes: self.unreported,
            }));
            self.credit += self.unreported;
            self.unreported = 0;
        }
        if received == total { self.stage(answers) } else { Ok(()) }
    }

    /// Checks what is complete and makes a version of it.
    fn stage(&mut self, answers: &mut Vec<Response>) -> Taken<()> {
        let Some(offered) = &mut self.offered else {
            return no(Reason::Protocol, "nothing is offered");
        };
        if let Some(data) = &offered.data {
            let digest = Sha256::digest(data);
            if digest[..] != offered.spec.sha256[..] {
                self.store.clear_incoming(None)?;
                let (is, wanted) = (playbook::hex(&digest), playbook::hex(&offered.spec.sha256));
                let text = format!("tensor {TENSOR} is not what was offered: its SHA-256 is {is}, not {wanted}");
                return if offered.resumed { later } else { no }(Reason::DigestMismatch, text);
            }
            if let Err(why) = playbook::parse(data) {
                self.store.clear_incoming(None)?;
                return no(Reason::WrongShape, format!("tensor {TENSOR} is no playbook: {why}"));
            }
            self.versions.add(&offered.manifest, Bytes::from(data.clone()))?;
            offered.data = None;
        }
        offered.staged = true;
        answers.push(Response::Staged(WeightStaged {
            version: offered.manifest.version,
        }));
        Ok(())
    }

    fn commit(&mut self, version: i64, answers: &mut Vec<Response>) -> Taken<()> {
        let Some(offered) = self
            .offered
            .as_ref()
            .filter(|o| o.manifest.version == version && o.staged)
        else {
            return no(Reason::Protocol, format!("version {version} is not staged"));
        };
        self.versions.commit(version, |state| {
            admit(&offered.manifest, state)?;
            if state.active_version == offered.active_then {
                return Ok(());
            }
            let text = format!(
                "an operator went from version {} to {} while it was on its way",
                offered.active_then, state.active_version
            );
            later(Reason::WrongBase, text)
        })?;
        answers.push(Response::Activated(WeightActivated {
            version,
            trace: offered.trace.clone(),
            ..Default::default()
        }));
        self.offered = None;
        Ok(())
    }

    fn abort(&mut self, abort: WeightAbort) -> Taken<()> {
        if self
            .offered
            .as_ref()
            .is_some_and(|offered| offered.manifest.version == abort.version)
        {
            eprintln!("the trainer gave version {} up: {}", abort.version, abort.reason);
            self.offered = None; // its bytes stay: the same offer goes on with them
        }
        Ok(())
    }

    /// The one tensor of an offered version, checked.
    fn resolve(&self, offer: &WeightOffer, manifest: &VersionManifest, state: &PolicyState) -> Taken<TensorSpec> {
        let mut found: Option<TensorSpec> = None;
        for spec in &offer.tensors {
            if spec.name != TENSOR {
                return no(
                    Reason::UnknownTensor,
                    format!("the model has no tensor {:?}", spec.name),
                );
            }
            if spec.dtype != DTYPE || spec.shape.len() != 1 || !(1..=MAX_BYTES as i64).contains(&spec.shape[0]) {
                let text = format!(
                    "tensor {TENSOR} is {}{:?}; a playbook is {DTYPE}, of one dimension and at most {MAX_BYTES} bytes",
                    spec.dtype, spec.shape
                );
                return no(Reason::WrongShape, text);
            }
            if found.is_some() || spec.sha256.len() != 32 {
                let text = format!("tensor {TENSOR} is listed twice, or its digest has the wrong length");
                return no(Reason::Protocol, text);
            }
            check_encoding(spec)?;
            found = Some(spec.clone());
        }
        if let Some(base) = offer.base_version {
            let known = state.kept_versions.contains(&base) && !state.withdrawn_versions.contains(&base);
            let Some((_, data)) = self.versions.get(base).filter(|_| known) else {
                let here = &state.kept_versions;
                return no(
                    Reason::WrongBase,
                    format!("it builds on version {base}, which is not here; here are {here:?}"),
                );
            };
            found.get_or_insert_with(|| playbook::spec(&data));
        }
        let Some(spec) = found else {
            let text =
                format!("1 tensors of the model are not listed and no base version is named, {TENSOR} among them");
            return no(Reason::Protocol, text);
        };
        if playbook::manifest_digest(&spec) != manifest.digest {
            let text = "the digests of the tensors do not make the digest of the manifest";
            return no(Reason::DigestMismatch, text);
        }
        Ok(spec)
    }
}

/// What an unfinished transfer is known by.
fn transfer(manifest: &VersionManifest, spec: &TensorSpec) -> String {
    format!(
        "{} {} {}",
        manifest.version,
        manifest.digest,
        playbook::hex(&spec.sha256)
    )
}

/// Bytes have no smaller encoding.
fn check_encoding(spec: &TensorSpec) -> Taken<()> {
    match spec.encoding() {
        TensorEncoding::Dense if spec.encoded_bytes == spec.shape[0] && spec.base_sha256.is_empty() => Ok(()),
        TensorEncoding::Dense | TensorEncoding::SparseZstd | TensorEncoding::LowRankZstd => no(
            Reason::Protocol,
            format!(
                "tensor {TENSOR}, {DTYPE}{:?}, can't be of encoding {} with {} bytes, rank {} and a base digest of {} bytes",
                spec.shape,
                spec.encoding,
                spec.encoded_bytes,
                spec.rank,
                spec.base_sha256.len()
            ),
        ),
        TensorEncoding::Unspecified => later(
            Reason::Unsupported,
            format!(
                "tensor {TENSOR}: encoding {} is not known here: DENSE is",
                spec.encoding
            ),
        ),
    }
}

/// Whether a version may follow the active one.
fn admit(manifest: &VersionManifest, state: &PolicyState) -> Taken<()> {
    let (version, active) = (manifest.version, state.active_version);
    if manifest.model_id != state.model_id {
        let (theirs, ours, model) = (&manifest.model_id, &state.model_id, &state.model);
        let text = format!("it belongs to the base model {theirs:?}; here is {ours:?} ({model})");
        return no(Reason::WrongModel, text);
    }
    if version > state.highest_version + FARTHEST {
        let text = format!(
            "its number is {version}, and the highest here was {}: versions are numbered one after the other",
            state.highest_version
        );
        return no(Reason::Protocol, text);
    }
    if version == active && manifest.digest == state.active_digest {
        return no(Reason::AlreadyActive, format!("version {version} is active already"));
    }
    if version == active {
        let text = format!(
            "version {version} is active with another digest, {}; give the new one a new number",
            state.active_digest
        );
        return no(Reason::DigestMismatch, text);
    }
    if state.pinned {
        let text = format!(
            "an operator pinned version {active}; the newest version comes when the pin is lifted (`openclaw-rl unpin`)"
        );
        return later(Reason::Pinned, text);
    }
    if version < active {
        return no(Reason::TooOld, format!("version {active} is active, which is newer"));
    }
    let taken_back = state.withdrawn_versions.last().copied().unwrap_or(0);
    if version <= taken_back {
        let text = format!("an operator took versions up to {taken_back} back; a new one needs a higher number");
        return no(Reason::TooOld, text);
    }
    if let Some(parent) = manifest
        .parent
        .filter(|parent| state.withdrawn_versions.contains(parent))
    {
        let text =
            format!("it was trained from version {parent}, which an operator took back; version {active} is active");
        return no(Reason::WrongBase, text);
    }
    Ok(())
}
