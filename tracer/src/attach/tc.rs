//! The `tc` hook of the devices of `--tc`, by tcx (Linux 6.6): beside the programs of others and before them, so that what
//! they take away was seen. The links end with the process, so nothing is left behind by any end of it.

use std::{error::Error, io, os::fd::AsFd as _};

use aya::{
    Ebpf,
    programs::{LinkOrder, SchedClassifier, TcAttachType, tc::TcAttachOptions},
};
use nix::errno::Errno;

use super::{AttachError, programs::explain};
use crate::{
    escape::Escaped,
    record::{Hook, HookState},
    topology::{Entrance, in_each},
};

/// The classifier in the kernel half.
const PROGRAM: &str = "tracer_tc";

/// Attaches the classifier to every device; whoever names a device wants it or nothing.
pub(super) fn attach(ebpf: &mut Ebpf, entrances: &[Entrance]) -> Result<Vec<Hook>, AttachError> {
    let program = ebpf.program_mut(PROGRAM);
    let program =
        program.ok_or_else(|| AttachError::Tc(format!("the kernel half has no {PROGRAM}")))?;
    let program: &mut SchedClassifier = program
        .try_into()
        .map_err(|error| AttachError::Tc(explain(&error)))?;
    program
        .load()
        .map_err(|error| AttachError::Tc(explain(&error)))?;
    let attached = in_each(
        entrances,
        |entrance| entrance.netns.as_fd(),
        |entrance| {
            let order = TcAttachOptions::TcxOrder(LinkOrder::first());
            program
                .attach_with_options(&entrance.name, TcAttachType::Ingress, order)
                .map_err(|error| {
                    if is_unknown_to_the_kernel(&error) {
                        "this kernel has no tcx (Linux 6.6 and later have it)".to_owned()
                    } else {
                        explain(&error)
                    }
                })
        },
    );
    let hooks = entrances.iter().zip(attached).map(|(entrance, attached)| {
        let attached = attached.unwrap_or_else(|errno| Err(errno.to_string()));
        match attached {
            Ok(_) => Ok(Hook {
                name: format!("{} ingress", entrance.name),
                kind: "tcx".to_owned(),
                state: HookState::Attached,
                reason: None,
            }),
            Err(reason) => Err(AttachError::Tc(format!(
                "{}: {reason}",
                Escaped(&entrance.name)
            ))),
        }
    });
    hooks.collect()
}

/// Whether bpf(2) does not know this kind of link.
fn is_unknown_to_the_kernel(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let code = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error);
        if code == Some(Errno::EINVAL as i32) {
            return true;
        }
        cause = error.source();
    }
    false
}
