//! The container of a process, by the path of its cgroup. The kernel knows no containers: what a path says is a
//! convention of whoever made it, and the process itself may have made one below its own.

use crate::fact::{Container, Runtime};

/// The digits of a container's id.
const ID_DIGITS: usize = 64;

/// What stands before the id in the name of a cgroup. The runtimes' helpers (`crio-conmon-`) are none of the containers.
const PREFIXES: [(&str, Runtime); 6] = [
    ("cri-containerd-", Runtime::Containerd),
    ("nerdctl-", Runtime::Containerd),
    ("containerd-", Runtime::Containerd),
    ("crio-", Runtime::CriO),
    ("docker-", Runtime::Docker),
    ("libpod-", Runtime::Podman),
];

/// The container that `/proc/PID/cgroup` tells. The file has a line `ID:CONTROLLERS:PATH` for each hierarchy; any of
/// them will do.
pub(super) fn container(cgroups: &str) -> Option<Container> {
    cgroups
        .lines()
        .find_map(|line| in_path(line.splitn(3, ':').nth(2)?))
}

/// The innermost container of a path: a node that is itself a container has others below.
fn in_path(path: &str) -> Option<Container> {
    // containerd writes `SLICE:cri-containerd:ID` where it was not told that systemd manages cgroups.
    let names: Vec<&str> = path.split(['/', ':']).collect();
    let (place, (id, runtime)) = names
        .iter()
        .enumerate()
        .rev()
        .find_map(|(place, name)| Some((place, id(name)?)))?;
    let above = &names[..place];
    let by_parent = || match above.last() {
        Some(&"docker") => Some(Runtime::Docker),
        Some(&"libpod_parent") => Some(Runtime::Podman),
        Some(&"cri-containerd") => Some(Runtime::Containerd),
        _ => None,
    };
    Some(Container {
        id: id.to_owned(),
        runtime: runtime.or_else(by_parent),
        pod_uid: above.iter().rev().find_map(|name| pod_uid(name)),
        pod: None,
    })
}

/// `ID`, `PREFIX-ID` or `PREFIX-ID.scope`.
fn id(name: &str) -> Option<(&str, Option<Runtime>)> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let (id, runtime) = PREFIXES
        .iter()
        .find_map(|(prefix, runtime)| Some((name.strip_prefix(prefix)?, Some(*runtime))))
        .unwrap_or((name, None));
    (id.len() == ID_DIGITS && id.bytes().all(is_digit)).then_some((id, runtime))
}

/// The uid in `podUID` or `kubepods-CLASS-podUID.slice`. systemd takes a dash for a level, so that the uid has underscores
/// there. A pod from a file on the node has 32 digits for a uid, and no dashes.
fn pod_uid(name: &str) -> Option<String> {
    let name = name.strip_suffix(".slice").unwrap_or(name);
    let uid = match name.rsplit_once("-pod") {
        Some((class, uid)) if class.contains("kubepods") => uid,
        _ => name.strip_prefix("pod")?,
    };
    let uid = uid.replace('_', "-");
    let is_dash = |index| matches!(index, 8 | 13 | 18 | 23);
    let fits = match uid.len() {
        32 => uid.bytes().all(is_digit),
        36 => uid.bytes().enumerate().all(|(index, byte)| {
            if is_dash(index) {
                byte == b'-'
            } else {
                is_digit(byte)
            }
        }),
        _ => false,
    };
    fits.then_some(uid)
}

const fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f2a9c1b0d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8";
    const OTHER: &str = "00000000000000000000000000000000000000000000000000000000000000aa";
    const UID: &str = "6d5bfd12-0c2e-4c56-9d5e-2f0f6f7c9a01";
    const UNDERSCORED: &str = "6d5bfd12_0c2e_4c56_9d5e_2f0f6f7c9a01";
    const STATIC: &str = "0123456789abcdef0123456789abcdef";

    #[track_caller]
    fn check(cgroups: &str, runtime: Option<Runtime>, pod_uid: Option<&str>) {
        let expect = Container {
            id: ID.to_owned(),
            runtime,
            pod_uid: pod_uid.map(str::to_owned),
            pod: None,
        };
        assert_eq!(container(cgroups), Some(expect), "{cgroups}");
    }

    #[track_caller]
    fn none(cgroups: &str) {
        assert_eq!(container(cgroups), None, "{cgroups}");
    }

    #[test]
    fn kubernetes_by_systemd() {
        let slice = format!(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice"
        );
        for (prefix, runtime) in [
            ("cri-containerd-", Runtime::Containerd),
            ("crio-", Runtime::CriO),
            ("docker-", Runtime::Docker),
        ] {
            check(
                &format!("0::{slice}/{prefix}{ID}.scope\n"),
                Some(runtime),
                Some(UID),
            );
        }
        // A guaranteed pod has no class; CRI-O puts the container one level deeper; a pod from a file has another uid.
        let slice = format!("/kubepods.slice/kubepods-pod{STATIC}.slice");
        check(
            &format!("0::{slice}/crio-{ID}.scope/container\n"),
            Some(Runtime::CriO),
            Some(STATIC),
        );
        check(
            &format!(
                "0::/system.slice/containerd.service/kubepods-besteffort-pod{UNDERSCORED}.slice:cri-containerd:{ID}\n"
            ),
            Some(Runtime::Containerd),
            Some(UID),
        );
    }

    #[test]
    fn kubernetes_by_cgroupfs() {
        // Nothing there says which runtime it is.
        check(
            &format!("0::/kubepods/burstable/pod{UID}/{ID}\n"),
            None,
            Some(UID),
        );
        check(
            &format!("0::/kubepods/pod{UID}/crio-{ID}\n"),
            Some(Runtime::CriO),
            Some(UID),
        );
    }

    #[test]
    fn every_hierarchy_of_version_1() {
        check(
            &format!(
                "12:pids:/kubepods/besteffort/pod{UID}/{ID}\n\
                 11:cpu,cpuacct:/kubepods/besteffort/pod{UID}/{ID}\n\
                 1:name=systemd:/kubepods/besteffort/pod{UID}/{ID}\n\
                 0::/\n"
            ),
            None,
            Some(UID),
        );
        // Some hierarchies may have no container.
        check(
            &format!("9:rdma:/\n8:memory:/docker/{ID}\n"),
            Some(Runtime::Docker),
            None,
        );
    }

    #[test]
    fn containers_without_kubernetes() {
        check(
            &format!("0::/system.slice/docker-{ID}.scope\n"),
            Some(Runtime::Docker),
            None,
        );
        check(&format!("0::/docker/{ID}\n"), Some(Runtime::Docker), None);
        check(
            &format!("0::/system.slice/nerdctl-{ID}.scope\n"),
            Some(Runtime::Containerd),
            None,
        );
        check(&format!("0::/default/{ID}\n"), None, None);
        check(
            &format!("0::/machine.slice/libpod-{ID}.scope/container\n"),
            Some(Runtime::Podman),
            None,
        );
        check(
            &format!(
                "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope\n"
            ),
            Some(Runtime::Podman),
            None,
        );
        check(
            &format!("0::/libpod_parent/libpod-{ID}\n"),
            Some(Runtime::Podman),
            None,
        );
    }

    #[test]
    fn a_node_that_is_a_container_has_pods_inside() {
        check(
            &format!(
                "0::/docker/{OTHER}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope\n"
            ),
            Some(Runtime::Containerd),
            Some(UID),
        );
        // As it looks from within a cgroup namespace.
        check(
            &format!("0::/../../kubepods/pod{UID}/{ID}\n"),
            None,
            Some(UID),
        );
    }

    #[test]
    fn what_is_no_container() {
        none("");
        none("0::/\n");
        none("0::/system.slice/sshd.service\n");
        none("0::/user.slice/user-1000.slice/session-3.scope\n");
        none(&format!("0::/machine.slice/libpod-conmon-{ID}.scope\n"));
        none(&format!(
            "0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-conmon-{ID}.scope\n"
        ));
        // Too short, too long, not hexadecimal.
        none(&format!("0::/docker/{}\n", &ID[..63]));
        none(&format!("0::/docker/{ID}0\n"));
        none(&format!("0::/docker/{}g\n", &ID[..63]));
        none("no colons at all\n");
        none(":::::\n");
    }

    #[test]
    fn what_is_no_pod() {
        check(
            &format!("0::/kubepods/podX{}/{ID}\n", &UID[1..]),
            None,
            None,
        );
        check(
            &format!("0::/kubepods/pod{}\u{1b}/{ID}\n", &UID[1..]),
            None,
            None,
        );
        check(&format!("0::/podman/{ID}\n"), None, None);
    }
}
