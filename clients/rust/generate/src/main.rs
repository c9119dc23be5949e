//! Writes the messages, clients and servers of `protos/openclaw_rl/v1`, and their descriptor set, into a folder.
//!
//! ```text
//! cargo run --locked --manifest-path clients/rust/generate/Cargo.toml [-- OUT]
//! ```
//!
//! OUT is `clients/rust/src/gen` unless it is given. The output is the same for the same protos, whatever the machine.
use prost::Message as _;
use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
};

fn main() -> Result<(), Box<dyn Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let protos = here.join("../../../protos").canonicalize()?;
    let out = env::args_os().nth(1).map_or_else(|| here.join("../src/gen"), PathBuf::from);
    fs::create_dir_all(&out)?;

    let mut files = fs::read_dir(protos.join("openclaw_rl/v1"))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>, std::io::Error>>()?;
    files.retain(|path| path.extension().is_some_and(|end| end == "proto"));
    files.sort();

    // protox has google/protobuf/*.proto itself; no file of ours imports google/rpc.
    let set = protox::compile(&files, [&protos])?;
    // Reflection does without the comments, which are three quarters of it.
    let mut bare = set.clone();
    for file in &mut bare.file {
        file.source_code_info = None;
    }
    fs::write(out.join("descriptor.bin"), bare.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".openclaw_rl.v1")
        // A server, or a fake one of a test, writes only what it does; the rest is UNIMPLEMENTED.
        .generate_default_stubs(true)
        .server_mod_attribute("openclaw_rl.v1", "#[cfg(feature = \"server\")]")
        .out_dir(&out)
        .compile_fds(set)?;
    Ok(())
}
