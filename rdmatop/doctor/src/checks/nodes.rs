//! /dev/infiniband and /sys as a process sees them.

use crate::{
    facts::{Facts, Reading},
    line::{Lines, WITH_ROOT},
    words::{count, names},
};

pub(crate) fn nodes(facts: &Facts, out: &mut Lines) {
    let view = &facts.view;
    let contained = facts.pid.is_some() || facts.host.container;
    let subject = match facts.pid {
        Some(pid) => format!("PID {pid} ({})", view.comm),
        None if contained => "this container".to_owned(),
        None => "this machine".to_owned(),
    };
    let Some(verbs) = facts.verbs.known() else { return };
    sees(facts, &subject, out);
    let verbs = own(facts, verbs);
    if verbs.is_empty() {
        return;
    }
    if view.nodes == Reading::Absent {
        out.fail(
            "",
            format!("{subject} has no /dev/infiniband"),
            "RDMA libraries open devices there; without it jobs use TCP.",
            if contained {
                "start the container with --device=/dev/infiniband --cap-add=IPC_LOCK (Kubernetes: an RDMA device plugin)"
            } else {
                "sudo modprobe ib_uverbs   # loads it until the next boot"
            },
        );
    }
    let what = format!("/dev/infiniband of {subject}");
    let Some(nodes) = out.known(&view.nodes, &subject, what, WITH_ROOT) else {
        return;
    };
    let mut missing = Vec::new();
    let mut closed = Vec::new();
    let mut blind = Vec::new();
    for (file, device) in &verbs {
        let what = format!("{device} ({file})");
        match nodes.iter().find(|(name, _)| name == file) {
            None => missing.push(what),
            Some((_, Some(false))) => closed.push(what),
            Some((_, None)) => blind.push(what),
            Some((_, Some(true))) => {}
        }
    }
    if !blind.is_empty() {
        out.unknown(
            &subject,
            format!("whether {subject} may open the files of {}", names(&blind)),
            "they lie on another mount, or are links",
        );
    }
    if !missing.is_empty() {
        let text = format!("{subject} has no file in /dev/infiniband for {}", names(&missing));
        // A container with only some of the devices is as intended.
        if contained && missing.len() < verbs.len() {
            out.pass("", text);
        } else {
            out.fail(
                "",
                text,
                "RDMA libraries open devices there; without it jobs use TCP.",
                if contained {
                    "start the container with --device=/dev/infiniband --cap-add=IPC_LOCK"
                } else {
                    "sudo udevadm trigger --action=add --subsystem-match=infiniband_verbs   # makes the files anew"
                },
            );
        }
    }
    if !closed.is_empty() {
        out.warn(
            "",
            format!("{subject} may not open the files of {}", names(&closed)),
            "RDMA libraries open them for reading and writing.",
            "sudo chmod a+rw /dev/infiniband/uverbs*   # every user may use the NICs, until the next boot; for good: a udev rule",
        );
    }
    if missing.is_empty() {
        connections(facts, nodes, &subject, out);
    }
    if out.is_empty() {
        let files = count(verbs.len(), "device");
        // `docker -v /dev/infiniband` gives files that the cgroup's rules (`--device`) let nobody open.
        let by_modes = if contained {
            "; their modes let it open them, and whether its cgroup does was not read"
        } else {
            ""
        };
        out.pass(
            "",
            format!("{subject} has the files of {files} in /dev/infiniband{by_modes}"),
        );
    }
}

/// Warns where the process has no file for rdma_cm, by which programs connect.
fn connections(facts: &Facts, nodes: &[(String, Option<bool>)], subject: &str, out: &mut Lines) {
    // EFA has no connections by rdma_cm.
    if facts.has_verbs_nic() && nodes.iter().all(|(name, _)| name != "rdma_cm") {
        out.warn(
            "",
            format!("{subject} has no /dev/infiniband/rdma_cm"),
            "Programs that connect by IP address (rdma_cm: rping, UCX) cannot.",
            if facts.pid.is_some() || facts.host.container {
                "start the container with --device=/dev/infiniband"
            } else {
                "sudo modprobe rdma_ucm   # loads it until the next boot"
            },
        );
    }
}

/// Verbs files of the devices that the subject has. In mode exclusive of `rdma system` those of a container
/// are in its network namespace, and the class of verbs lists all: `uverbs_class` has no `ns_type`
/// (drivers/infiniband/core/uverbs_main.c).
fn own<'a>(facts: &'a Facts, verbs: &'a [(String, String)]) -> Vec<&'a (String, String)> {
    let own: Option<Vec<&str>> = if facts.pid.is_some() {
        let all = facts.view.sees.known().filter(|all| !all.is_empty());
        all.map(|all| all.iter().map(|(name, _)| name.as_str()).collect())
    } else {
        let all = facts.devices.known();
        all.map(|all| all.iter().map(|device| device.name.as_str()).collect())
    };
    let is_own = |device: &str| own.as_ref().is_none_or(|own| own.contains(&device));
    verbs.iter().filter(|(_, device)| is_own(device)).collect()
}

fn sees(facts: &Facts, subject: &str, out: &mut Lines) {
    let sees = &facts.view.sees;
    if let Some(why) = sees.unknown() {
        out.unknown(subject, format!("the devices that {subject} finds in /sys"), why);
    }
    if let Some(sees) = sees.known() {
        let broken: Vec<&str> = sees
            .iter()
            .filter(|(_, whole)| !whole)
            .map(|(name, _)| name.as_str())
            .collect();
        // For the host itself the check of devices reports this.
        if facts.pid.is_some() && !broken.is_empty() {
            out.fail(
                &names(&broken),
                format!(
                    "{subject} finds {} in /sys and their files are missing",
                    names(&broken)
                ),
                "RDMA libraries find the names and cannot use the devices.",
                "start the container with -v /sys/devices:/sys/devices:ro",
            );
        }
    }
}
