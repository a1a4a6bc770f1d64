//! Loads the programs, several at a time, and attaches each on its own: one that this kernel lacks or refuses
//! takes none of the others with it.

use std::{
    collections::HashMap,
    error::Error,
    fs::File,
    io,
    num::NonZero,
    os::fd::{AsFd as _, AsRawFd as _},
    sync::Mutex,
    thread,
};

use aya::{
    Ebpf, Endianness,
    programs::{BtfTracePoint, Program, ProgramError},
};

use super::AttachError;
use crate::{
    kernel::{btf::Btf, features::Features},
    probes::{PROBES, Probe},
    record::{BlindSpot, Hook, HookState},
};

/// Programs that are verified at the same time.
const LOADERS_MAX: usize = 4;

/// What became of every hook.
pub(super) struct Programs {
    pub(super) hooks: Vec<Hook>,
    /// What follows from those that are not attached.
    pub(super) blind_spots: Vec<BlindSpot>,
    /// What the kernel tells of each attached program, opened while that is allowed.
    pub(super) info: Vec<File>,
}

/// Why a hook is not attached.
type Refusal = (HookState, String);

/// Attaches what this kernel lets us attach.
pub(super) fn attach(
    ebpf: &mut Ebpf,
    btf: &Btf,
    features: &Features,
) -> Result<Programs, AttachError> {
    let planned = PROBES
        .iter()
        .map(|probe| (probe, plan(probe, btf, features)));
    let planned: Vec<(&Probe, Result<&str, Refusal>)> = planned.collect();
    let wanted = planned.iter().filter_map(|(probe, program)| {
        let program = program.as_ref().ok()?;
        Some((*program, probe.tracepoint))
    });
    let mut loaded = load(ebpf, btf, &wanted.collect())?;

    let mut programs = Programs {
        hooks: Vec::new(),
        blind_spots: Vec::new(),
        info: Vec::new(),
    };
    for (probe, program) in planned {
        let attached = program.and_then(|program| {
            let outcome = loaded
                .remove(program)
                .unwrap_or_else(|| Err(format!("the kernel half has no program {program}")));
            outcome
                .and_then(attach_one)
                .map_err(|reason| (HookState::Failed, reason))
        });
        programs.add(probe, attached);
    }
    if programs.info.is_empty() {
        return Err(programs.nothing_attached());
    }
    Ok(programs)
}

/// The program to load for a hook, or why none.
fn plan(probe: &Probe, btf: &Btf, features: &Features) -> Result<&'static str, Refusal> {
    let name = probe.tracepoint;
    if btf.tracepoint(name).is_none() {
        let reason = format!("this kernel has no tracepoint {name}");
        return Err((HookState::Absent, reason));
    }
    match (probe.refusal)(features) {
        Some(refusal) => Err(refusal),
        None => Ok((probe.program)(features)),
    }
}

/// Has the kernel verify the programs, by name, for their tracepoints. Most of the time until a trace is ready is
/// spent here.
fn load<'a>(
    ebpf: &'a mut Ebpf,
    btf: &Btf,
    wanted: &HashMap<&str, &str>,
) -> Result<HashMap<String, Result<&'a mut BtfTracePoint, String>>, AttachError> {
    let tracepoints: Vec<&str> = wanted.values().copied().collect();
    // The library wants the kernel's BTF for a number that we already know.
    let excerpt = aya::Btf::parse(&btf.excerpt(&tracepoints), Endianness::default())
        .map_err(|error| io::Error::other(error.to_string()))?;
    let queue: Vec<(String, &str, &mut Program)> = ebpf
        .programs_mut()
        .filter_map(|(name, program)| Some((name.to_owned(), *wanted.get(name)?, program)))
        .collect();
    let loaders = thread::available_parallelism()
        .map_or(1, NonZero::get)
        .min(LOADERS_MAX);
    let queue = Mutex::new(queue);
    let next = || queue.lock().ok()?.pop();
    let loaded = Mutex::new(HashMap::new());
    let work = || {
        while let Some((name, tracepoint, program)) = next() {
            let outcome = load_one(program, tracepoint, &excerpt);
            if let Ok(mut loaded) = loaded.lock() {
                loaded.insert(name, outcome);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..loaders {
            scope.spawn(work);
        }
        work();
    });
    Ok(loaded.into_inner().unwrap_or_default())
}

fn load_one<'a>(
    program: &'a mut Program,
    tracepoint: &str,
    excerpt: &aya::Btf,
) -> Result<&'a mut BtfTracePoint, String> {
    let program: &mut BtfTracePoint = program.try_into().map_err(|error| explain(&error))?;
    program
        .load(tracepoint, excerpt)
        .map_err(|error| explain(&error))?;
    Ok(program)
}

fn attach_one(program: &mut BtfTracePoint) -> Result<File, String> {
    program.attach().map_err(|error| explain(&error))?;
    let fd = program.fd().map_err(|error| explain(&error))?;
    let info = format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd());
    File::open(&info).map_err(|error| format!("cannot read {info}: {error}"))
}

impl Programs {
    fn add(&mut self, probe: &Probe, attached: Result<File, Refusal>) {
        let (state, reason) = match attached {
            Ok(info) => {
                self.info.push(info);
                (HookState::Attached, None)
            }
            Err((state, reason)) => {
                let spot = BlindSpot {
                    code: probe.without.code.to_owned(),
                    summary: probe.without.summary.to_owned(),
                };
                if !self.blind_spots.contains(&spot) {
                    self.blind_spots.push(spot);
                }
                (state, Some(reason))
            }
        };
        self.hooks.push(Hook {
            name: probe.tracepoint.to_owned(),
            kind: "tp_btf".to_owned(),
            state,
            reason,
        });
    }

    /// The error of a run that would see nothing.
    fn nothing_attached(&self) -> AttachError {
        let first = self
            .hooks
            .iter()
            .find_map(|hook| Some((hook.name.clone(), hook.reason.clone()?)));
        let (hook, reason) = first.unwrap_or_default();
        AttachError::NoHooks { hook, reason }
    }
}

/// A refusal in one line: the last thing that the verifier said, else the error itself.
pub(super) fn explain(error: &ProgramError) -> String {
    if let ProgramError::LoadError {
        io_error,
        verifier_log,
    } = error
    {
        let log = verifier_log.to_string();
        let statistics = |line: &&str| {
            ["processed ", "stack depth ", "verification time "]
                .iter()
                .any(|start| line.starts_with(start))
                || line.trim().is_empty()
        };
        return match log.lines().rev().find(|line| !statistics(line)) {
            Some(line) => format!("the kernel refused the program: {io_error} ({line})"),
            None => format!("the kernel refused the program: {io_error}"),
        };
    }
    chain(error)
}

/// An error with its causes in one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
