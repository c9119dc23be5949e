//! The policy server's side of the weight stream: offer, need, chunks, staged, commit, activated; knows nothing of gRPC.
//!
//! What has arrived is on disk and outlives streams and processes: an offer that comes again goes on where it ended.
use std::sync::Arc;

use bytes::Bytes;
use openclaw_rl_client::v1::{
    SyncWeightsRequest, SyncWeightsResponse, TensorSpec, TraceContext, VersionManifest, WeightAbort, WeightActivated,
    WeightChunk, WeightNeed, WeightOffer, WeightProgress, WeightRejectReason as Reason, WeightRejected, WeightStaged,
    sync_weights_request::Message as Request, sync_weights_response::Message as Response,
};
use sha2::{Digest as _, Sha256};

use crate::{
    offers::{Taken, admit, later, no, resolve},
    playbook::{self, TENSOR},
    store::Store,
    versions::Versions,
};

/// Bytes that may be on their way at once.
const WINDOW: i64 = 16 << 20;

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
        Self { store, versions, offered: None, rejected: None, credit: 0, unreported: 0 }
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
                (manifest.version, self.offer(offer, manifest, request.trace, &mut answers))
            }
            Some(Request::Chunk(chunk)) => (chunk.version, self.chunk(chunk, &mut answers)),
            Some(Request::Commit(commit)) if Some(commit.version) == self.rejected => (commit.version, Ok(())),
            Some(Request::Commit(commit)) => (commit.version, self.commit(commit.version, &mut answers)),
            Some(Request::Abort(abort)) => (abort.version, self.abort(abort)),
            None => (0, no(Reason::Protocol, "the message is empty")),
        };
        if let Err(rejection) = done {
            log!("version {version} is not taken: {}", rejection.message);
            if self.offered.as_ref().is_none_or(|offered| offered.manifest.version == version) {
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
        let spec = resolve(&self.versions, &offer, &manifest, &state)?;
        let (version, size) = (manifest.version, spec.encoded_bytes);
        let there = self.versions.get(version).is_some_and(|(known, _)| known.digest == manifest.digest);
        // An instruction that is here already needn't travel: that of the active version, or of the base.
        let local = [state.active_version, 0]
            .iter()
            .filter_map(|version| self.versions.get(*version))
            .find(|(_, data)| Sha256::digest(data)[..] == spec.sha256[..]);
        let mut need = WeightNeed { version, ..Default::default() };
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
        self.offered =
            Some(Offered { manifest, trace, active_then: state.active_version, spec, data, resumed, staged: false });
        if complete { self.stage(answers) } else { Ok(()) }
    }

    fn chunk(&mut self, chunk: WeightChunk, answers: &mut Vec<Response>) -> Taken<()> {
        if Some(chunk.version) == self.rejected {
            return Ok(()); // was on its way when the version was rejected
        }
        let due = self.offered.as_mut().filter(|o| o.manifest.version == chunk.version && !o.staged);
        let Some((data, total)) = due.and_then(|o| Some((o.data.as_mut()?, o.spec.encoded_bytes))) else {
            let text = format!("a chunk of version {}, which is not due", chunk.version);
            return no(Reason::Protocol, text);
        };
        let size = chunk.data.len() as i64;
        if chunk.offset != data.len() as i64 || size == 0 {
            let text = format!("{size} bytes at byte {}; due is byte {} of {total}", chunk.offset, data.len());
            return later(Reason::BadChunk, text);
        }
        if size > self.credit {
            return no(Reason::Protocol, format!("{size} bytes were sent where {} were granted", self.credit));
        }
        if crc32c::crc32c(&chunk.data) != chunk.crc32c {
            let text = format!("the chunk at byte {} was damaged on its way: its CRC-32C differs", chunk.offset);
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
        answers.push(Response::Staged(WeightStaged { version: offered.manifest.version }));
        Ok(())
    }

    fn commit(&mut self, version: i64, answers: &mut Vec<Response>) -> Taken<()> {
        let Some(offered) = self.offered.as_ref().filter(|o| o.manifest.version == version && o.staged) else {
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
        if self.offered.as_ref().is_some_and(|offered| offered.manifest.version == abort.version) {
            log!("the trainer gave version {} up: {}", abort.version, abort.reason);
            self.offered = None; // its bytes stay: the same offer goes on with them
        }
        Ok(())
    }
}

/// What an unfinished transfer is known by.
fn transfer(manifest: &VersionManifest, spec: &TensorSpec) -> String {
    format!("{} {} {}", manifest.version, manifest.digest, playbook::hex(&spec.sha256))
}
