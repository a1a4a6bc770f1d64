//! Why nothing could be attached, in words that say what to do.

use std::{error::Error, io};

use aya::{EbpfError, maps::MapError};
use thiserror::Error;

use crate::{
    kernel::btf::BtfError,
    privilege::{self, Missing},
};

/// Why nothing could be attached.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The kernel does not describe its types.
    #[error(
        "this kernel has no usable type information (BTF), without which tracer cannot read its packets: {0}; \
         a kernel built with CONFIG_DEBUG_INFO_BTF=y has it"
    )]
    NoBtf(#[from] BtfError),
    /// The kernel refused the programs or maps for lack of privilege, of which this is what can be seen.
    #[error("{}", advice(.0.as_ref()))]
    NotPermitted(Option<Missing>),
    /// None of the hooks could be attached.
    #[error("no hook could be attached; the first that failed, {hook}, did so because {reason}")]
    NoHooks {
        /// The hook.
        hook: String,
        /// Why.
        reason: String,
    },
    /// A device of `--tc` cannot be watched there.
    #[error("--tc: {}", .0)]
    Tc(String),
    /// More namespaces than the set holds, or another map that refused its contents.
    #[error("cannot fill the map {map}: {source}")]
    Map {
        /// The map.
        map: &'static str,
        /// Why.
        source: MapError,
    },
    /// The object could not be loaded.
    #[error("the kernel refused tracer's maps: {0}")]
    Load(#[from] EbpfError),
    /// A thread of this process could not do its part.
    #[error("cannot prepare: {0}")]
    Io(#[from] io::Error),
}

fn advice(missing: Option<&Missing>) -> String {
    match missing {
        Some(missing) => missing.to_string(),
        None => "the kernel forbids bpf(2) although tracer is root: a security policy does (lockdown, an LSM, a \
                 container's seccomp profile); run tracer on the node itself, not in a container"
            .to_owned(),
    }
}

/// Tells a lack of privilege from everything else.
pub(super) fn explain_load(error: EbpfError) -> AttachError {
    let mut cause: Option<&dyn Error> = Some(&error);
    while let Some(error) = cause {
        let refused = error
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
        if refused {
            return AttachError::NotPermitted(privilege::check().err());
        }
        cause = error.source();
    }
    AttachError::Load(error)
}

/// What a failure of this map is called.
pub(super) fn in_map(map: &'static str) -> impl Fn(MapError) -> AttachError {
    move |source| AttachError::Map { map, source }
}
