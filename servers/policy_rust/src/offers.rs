//! Whether an offered version can be taken.
use std::io;

use openclaw_rl_client::v1::{
    PolicyState, TensorEncoding, TensorSpec, VersionManifest, WeightOffer, WeightRejectReason as Reason,
};

use crate::{
    playbook::{self, DTYPE, MAX_BYTES, TENSOR},
    versions::{FARTHEST, Versions},
};

/// A version can't be taken.
pub struct Rejection {
    pub reason: Reason,
    pub message: String,
    pub retryable: bool,
}

pub type Taken<T> = std::result::Result<T, Rejection>;

pub fn no<T>(reason: Reason, message: impl Into<String>) -> Taken<T> {
    Err(Rejection { reason, message: message.into(), retryable: false })
}

pub fn later<T>(reason: Reason, message: impl Into<String>) -> Taken<T> {
    no(reason, message).map_err(|rejection: Rejection| Rejection { retryable: true, ..rejection })
}

impl From<io::Error> for Rejection {
    fn from(error: io::Error) -> Self {
        Self { reason: Reason::Storage, message: format!("the version can't be stored: {error}"), retryable: true }
    }
}

/// The one tensor of an offered version, checked.
pub fn resolve(
    versions: &Versions,
    offer: &WeightOffer,
    manifest: &VersionManifest,
    state: &PolicyState,
) -> Taken<TensorSpec> {
    let mut found: Option<TensorSpec> = None;
    for spec in &offer.tensors {
        if spec.name != TENSOR {
            return no(Reason::UnknownTensor, format!("the model has no tensor {:?}", spec.name));
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
        let Some((_, data)) = versions.get(base).filter(|_| known) else {
            let here = &state.kept_versions;
            return no(Reason::WrongBase, format!("it builds on version {base}, which is not here; here are {here:?}"));
        };
        found.get_or_insert_with(|| playbook::spec(&data));
    }
    let Some(spec) = found else {
        let text = format!("1 tensors of the model are not listed and no base version is named, {TENSOR} among them");
        return no(Reason::Protocol, text);
    };
    if playbook::manifest_digest(&spec) != manifest.digest {
        let text = "the digests of the tensors do not make the digest of the manifest";
        return no(Reason::DigestMismatch, text);
    }
    Ok(spec)
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
            format!("tensor {TENSOR}: encoding {} is not known here: DENSE is", spec.encoding),
        ),
    }
}

/// Whether a version may follow the active one.
pub fn admit(manifest: &VersionManifest, state: &PolicyState) -> Taken<()> {
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
    if let Some(parent) = manifest.parent.filter(|parent| state.withdrawn_versions.contains(parent)) {
        let text =
            format!("it was trained from version {parent}, which an operator took back; version {active} is active");
        return no(Reason::WrongBase, text);
    }
    Ok(())
}
