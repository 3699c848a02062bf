//! Limits, device files, sharers and settings of processes.

use super::{HEALTHY, changed, devices, with_settings};
use rdmatop_doctor::{
    Facts, Reading, examine,
    facts::{RdmaLimit, Service, Sharers},
};

#[test]
fn limits_are_judged_by_what_they_permit() {
    let memlock = |limit, may_lock| {
        changed(move |facts| {
            facts.processes[0].memlock = Reading::Known(limit);
            facts.processes[0].may_lock = may_lock;
        })
    };
    assert_eq!(
        memlock(Some(65_536), false),
        ["Fail limit.memlock PID 4711 (python3) may lock 64 KiB of memory"]
    );
    assert_eq!(
        memlock(Some(8 << 20), false),
        ["Warn limit.memlock PID 4711 (python3) may lock 8 MiB of memory"]
    );
    assert_eq!(memlock(Some(8 << 20), true), [""; 0]);
    assert_eq!(memlock(Some(1 << 30), false), [""; 0]);
    let line = changed(|facts| {
        facts.services.push(Service {
            comm: "dockerd".into(),
            unit: None,
            memlock: Some(8 << 20),
            exempt: false,
            shell: false,
        });
    });
    assert_eq!(
        line,
        ["Warn limit.default dockerd hands on a limit of 8 MiB of locked memory"]
    );
    let mut facts = HEALTHY.clone();
    facts.services.push(Service {
        comm: "containerd".into(),
        unit: Some("k3s.service".into()),
        memlock: Some(8 << 20),
        exempt: false,
        shell: false,
    });
    let report = examine(&facts);
    let mut remedies = report.lines.iter().map(|line| &*line.remedy);
    assert!(
        remedies
            .any(|remedy| remedy.starts_with("LimitMEMLOCK=infinity by: sudo systemctl edit k3s.service;"))
    );
    // A user may raise the limit up to the hard one, which is often the same.
    let mut facts = HEALTHY.clone();
    facts.services.push(Service {
        comm: "bash".into(),
        unit: None,
        memlock: Some(8 << 20),
        exempt: false,
        shell: true,
    });
    let mut remedy = |cgroup: &str, container| {
        (facts.view.cgroup, facts.host.container) = (Some(cgroup.to_owned()), container);
        let report = examine(&facts);
        let line = report.lines.iter().find(|line| line.id == "limit.default");
        line.unwrap().remedy.to_string()
    };
    for (cgroup, container, says) in [
        ("/user.slice/user-7.slice/session-3.scope", false, "limits.conf"),
        ("/", false, "limits.conf"),
        ("/", true, "start the container with --ulimit"),
        (
            "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
            false,
            "slurm.conf",
        ),
    ] {
        let said = remedy(cgroup, container);
        assert!(
            said.starts_with("ulimit -Hl ") && said.contains(says),
            "{cgroup}: {said}"
        );
    }
    let cgroup = |current| {
        changed(move |facts| {
            facts.view.rdma_limits = Reading::Known(vec![RdmaLimit {
                cgroup: "/job".into(),
                device: "mlx5_0".into(),
                resource: "hca_object".into(),
                max: 10,
                current,
            }]);
        })
    };
    assert_eq!(
        cgroup(Some(10)),
        ["Fail limit.cgroup 10 of 10 RDMA objects of mlx5_0 are in use in cgroup /job"]
    );
    assert_eq!(
        cgroup(Some(9)),
        ["Warn limit.cgroup 9 of 10 RDMA objects of mlx5_0 are in use in cgroup /job"]
    );
    assert_eq!(
        cgroup(Some(8)),
        ["Pass limit.cgroup RDMA limits of the cgroup are not reached"]
    );
}

#[test]
fn the_limit_of_a_process_that_does_no_rdma_is_not_judged() {
    let memlock = |setting: Option<&str>, change: fn(&mut Facts)| {
        let mut facts = HEALTHY.clone();
        facts.processes.truncate(1);
        let process = &mut facts.processes[0];
        process.memlock = Reading::Known(Some(65_536));
        process.has_open = false;
        let setting = setting.map(|name| (name.to_owned(), "1".to_owned()));
        process.environ = Reading::Known(setting.into_iter().collect());
        change(&mut facts);
        of_check("limit.memlock", &facts).len()
    };
    for of_none in [None, Some("NCCL_VERSION"), Some("CUDA_VISIBLE_DEVICES")] {
        assert_eq!(memlock(of_none, |_| {}), 0, "{of_none:?}");
    }
    let nccl = Some("NCCL_DEBUG");
    assert_eq!(memlock(nccl, |_| {}), 1);
    assert_eq!(memlock(nccl, |facts| facts.processes[0].from_conf = 1), 0);
    assert_eq!(memlock(nccl, |facts| facts.devices = Reading::Known(vec![])), 0);
    assert_eq!(memlock(None, |facts| facts.processes[0].has_open = true), 1);
    assert_eq!(memlock(None, |facts| facts.processes[0].has_qps = true), 1);
    assert_eq!(memlock(None, |facts| facts.pid = Some(4711)), 1);
}

#[test]
fn nccl_without_its_plug_in_uses_no_efa() {
    let with = |libraries: Reading<Vec<String>>, driver: &str, has_qps: bool| {
        let mut facts = HEALTHY.clone();
        for device in devices(&mut facts) {
            device.driver = Some(driver.into());
        }
        let process = &mut facts.processes[0];
        (process.libraries, process.has_qps) = (libraries, has_qps);
        of_check("job.rdma", &facts)
    };
    let list = |names: &[&str]| Reading::Known(names.iter().map(|name| (*name).to_owned()).collect());
    let nccl = || list(&["libnccl.so.2", "libibverbs.so.1"]);
    let line = with(nccl(), "efa", false);
    assert_eq!(line.len(), 1, "{line:?}");
    assert!(
        line[0].starts_with("Pass ")
            && line[0].contains(
                ": NCCL has loaded no plug-in for EFA so far: it does so with its first communicator"
            ),
        "{line:?}"
    );
    let unreadable = Reading::Unreadable("only root may read it".to_owned());
    assert!(with(unreadable, "efa", false)[0].starts_with("Unknown "));
    for (libraries, driver, has_qps) in [
        (nccl(), "mlx5_core", false),
        (nccl(), "efa", true),
        (
            list(&["libnccl.so.2", "libnccl-net-ofi.so", "libfabric.so.1"]),
            "efa",
            false,
        ),
        (list(&["libcuda.so.1"]), "efa", false),
        (Reading::Absent, "efa", false),
    ] {
        let line = with(libraries, driver, has_qps);
        assert!(
            line.iter().all(|line| line.starts_with("Pass")),
            "{driver} {line:?}"
        );
    }
}

#[test]
fn ranks_beyond_the_backlog_wait() {
    let mut facts = HEALTHY.clone();
    facts.tcp.backlog = Some(128);
    let report = examine(&facts);
    let line = report.lines.iter().find(|line| line.id == "tcp.backlog").unwrap();
    assert!(line.why.ends_with("wait for seconds."), "{line:?}");
}

#[test]
fn device_files_are_missed_and_closed_ones_are_named() {
    let line = changed(|facts| facts.view.nodes = Reading::Absent);
    assert_eq!(line, ["Fail limit.devices this machine has no /dev/infiniband"]);
    let node = |change: fn(&mut Vec<(String, Option<bool>)>)| {
        changed(move |facts| {
            if let Reading::Known(nodes) = &mut facts.view.nodes {
                change(nodes);
            }
        })
    };
    assert_eq!(
        node(|nodes| nodes.retain(|(name, _)| name != "uverbs3")),
        ["Fail limit.devices this machine has no file in /dev/infiniband for mlx5_3 (uverbs3)"]
    );
    assert_eq!(
        node(|nodes| nodes
            .iter_mut()
            .filter(|(name, _)| name == "uverbs3")
            .for_each(|(_, open)| *open = Some(false))),
        ["Warn limit.devices this machine may not open the files of mlx5_3 (uverbs3)"]
    );
    assert_eq!(
        node(|nodes| nodes.retain(|(name, _)| name != "rdma_cm")),
        ["Warn limit.devices this machine has no /dev/infiniband/rdma_cm"]
    );
    let of_efa = changed(|facts| {
        if let (Reading::Known(nodes), Reading::Known(devices)) = (&mut facts.view.nodes, &mut facts.devices)
        {
            nodes.retain(|(name, _)| name != "rdma_cm");
            for device in devices {
                device.driver = Some("efa".into());
            }
        }
    });
    assert!(
        of_efa.iter().all(|line| !line.contains("limit.devices")),
        "{of_efa:?}"
    );
}

#[test]
fn a_container_need_not_have_the_files_of_all_devices() {
    let node = |exclusive: bool, kept: fn(&str) -> bool| {
        let mut facts = HEALTHY.clone();
        facts.host.container = true;
        if let Reading::Known(devices) = &mut facts.devices {
            devices.retain(|device| !exclusive || device.name == "mlx5_3");
        }
        if let Reading::Known(nodes) = &mut facts.view.nodes {
            nodes.retain(|(name, _)| kept(name));
        }
        of_check("limit.devices", &facts)
    };
    let of_3 = |name: &str| ["uverbs3", "rdma_cm"].contains(&name);
    assert_eq!(
        node(true, of_3),
        [
            "Pass this container has the files of 1 device in /dev/infiniband; their modes let it open them, and whether its cgroup does was not read"
        ]
    );
    let some = node(false, of_3);
    assert!(
        some.len() == 1
            && some[0].starts_with("Pass this container has no file in /dev/infiniband for mlx5_0"),
        "{some:?}"
    );
    let none = node(false, |_| false);
    assert!(none[0].starts_with("Fail this container has no file"), "{none:?}");
    let mut facts = HEALTHY.clone();
    (facts.host.container, facts.view.nodes) = (true, Reading::Absent);
    let report = examine(&facts);
    let line = report
        .lines
        .iter()
        .find(|line| line.id == "limit.devices")
        .unwrap();
    assert!(line.remedy.starts_with("start the container with"), "{line:?}");
}

#[test]
fn processes_that_share_verbs_files_with_the_given_one_are_named() {
    let line = |sharers: Reading<Sharers>| {
        changed(|facts| (facts.view.comm, facts.view.pid, facts.view.sharers) = ("rank".into(), 7, sharers))
    };
    let known = |found: &[(u32, &str)], partial| {
        let found = found.iter().map(|(pid, comm)| (*pid, (*comm).to_owned()));
        Reading::Known(Sharers {
            found: found.collect(),
            partial,
        })
    };
    assert_eq!(
        line(known(&[(8, "worker"), (9, "worker")], false)),
        [
            "Pass job.sharers PID 7 (rank) shares verbs files with PID 8 (worker) and PID 9 (worker): its queue pairs last until all have closed them"
        ]
    );
    assert_eq!(
        line(known(&[], false)),
        ["Pass job.sharers PID 7 (rank) shares no verbs file with another process"]
    );
    let partial = line(known(&[], true));
    assert_eq!(
        partial,
        ["Unknown job.sharers whether further processes share its verbs files"]
    );
    assert_eq!(line(known(&[(8, "worker")], true)).len(), 2);
    assert_eq!(
        line(Reading::Unreadable("only root may read it".into())),
        ["Unknown job.sharers which processes share its verbs files"]
    );
    // Without --pid.
    assert_eq!(line(Reading::Absent), [""; 0]);
}

#[test]
fn settings_of_jobs_are_held_to_the_machine() {
    const PID: &str = "PID 4711 (python3)";
    for (setting, said) in [
        (
            "NCCL_IB_DISABLE=1",
            format!("Fail job.rdma {PID}: NCCL_IB_DISABLE=1 turns RDMA off"),
        ),
        (
            "NCCL_NET=Socket",
            format!("Fail job.rdma {PID}: NCCL_NET=Socket turns RDMA off"),
        ),
        (
            "UCX_TLS=tcp,sm",
            format!("Fail job.rdma {PID}: UCX_TLS=tcp,sm turns RDMA off"),
        ),
        (
            "FI_PROVIDER=tcp",
            format!("Fail job.rdma {PID}: FI_PROVIDER=tcp turns RDMA off"),
        ),
        (
            "NVSHMEM_REMOTE_TRANSPORT=none",
            format!("Fail job.rdma {PID}: NVSHMEM_REMOTE_TRANSPORT=none turns RDMA off"),
        ),
        (
            "NCCL_IB_HCA=mlx5_9",
            format!("Fail job.devices {PID}: NCCL_IB_HCA=mlx5_9 takes no RDMA device that this machine has"),
        ),
        (
            "NCCL_IB_HCA==mlx5_1,mlx5_9",
            format!("Warn job.devices {PID}: NCCL_IB_HCA names mlx5_9, which this machine lacks"),
        ),
        (
            "NCCL_IB_HCA=^mlx5_1",
            "Pass job.devices NCCL_IB_HCA=^mlx5_1 takes mlx5_0, mlx5_2, mlx5_3, mlx5_4 and 3 more".into(),
        ),
        (
            "UCX_NET_DEVICES=mlx5_0:1,eth0",
            "Pass job.devices UCX_NET_DEVICES=mlx5_0:1,eth0 takes mlx5_0".into(),
        ),
        (
            "UCX_NET_DEVICES=mlx5_9:1",
            format!(
                "Fail job.devices {PID}: UCX_NET_DEVICES=mlx5_9:1 takes no RDMA device that this machine has"
            ),
        ),
        (
            "NVSHMEM_HCA_LIST=mlx5_0:1,mlx5_1:1",
            "Pass job.devices NVSHMEM_HCA_LIST=mlx5_0:1,mlx5_1:1 takes mlx5_0 and mlx5_1".into(),
        ),
        (
            "NCCL_SOCKET_IFNAME=bond",
            format!(
                "Fail job.interface {PID}: NCCL_SOCKET_IFNAME=bond names no network interface that it has"
            ),
        ),
        (
            "GLOO_SOCKET_IFNAME=eth",
            format!(
                "Fail job.interface {PID}: GLOO_SOCKET_IFNAME=eth names no network interface that it has"
            ),
        ),
        (
            "NCCL_SOCKET_IFNAME=^lo",
            "Pass job.interface NCCL_SOCKET_IFNAME=^lo names eth0".into(),
        ),
        (
            "NCCL_IB_GID_INDEX=9",
            format!("Fail job.gid {PID}: NCCL_IB_GID_INDEX=9 is no address (GID) of mlx5_0 to mlx5_7"),
        ),
        (
            "UCX_IB_GID_INDEX=1",
            format!(
                "Warn job.gid {PID}: UCX_IB_GID_INDEX=1 is a link-local address (GID) of mlx5_0 to mlx5_7"
            ),
        ),
        (
            "NCCL_IB_GDR_LEVEL=3",
            format!("Warn job.names {PID}: NCCL_IB_GDR_LEVEL is an old name that NCCL reads no more"),
        ),
        (
            "NCCL_IB_HCAS=mlx5_0",
            format!("Warn job.names {PID}: NCCL_IB_HCAS is not a variable of NCCL; NCCL_IB_HCA is"),
        ),
    ] {
        assert_eq!(with_settings(&[setting]), [said], "{setting}");
    }
    for harmless in [
        "NCCL_IB_DISABLE=0",
        "NCCL_DEBUG=INFO",
        "UCX_TLS=rc,sm",
        "FI_PROVIDER=efa",
        "UCX_NET_DEVICES=all",
        "NCCL_IB_GID_INDEX=-1",
        "NCCL_IB_HCA=",
    ] {
        assert_eq!(with_settings(&[harmless]), [""; 0], "{harmless}");
    }
    // The port number in the list takes part in finding the index.
    assert_eq!(
        with_settings(&["NCCL_IB_HCA=mlx5_1", "NCCL_IB_GID_INDEX=3"])[1],
        "Pass job.gid NCCL_IB_GID_INDEX=3 is a RoCE v2 address (GID) of mlx5_1"
    );
}

#[test]
fn a_setting_that_nccl_does_not_read_turns_no_rdma_of_nccl_off() {
    const PID: &str = "PID 4711 (python3)";
    for (settings, said) in [
        (
            ["UCX_TLS=tcp", "NCCL_DEBUG=INFO"],
            "Pass job.rdma {PID}: UCX by TCP (UCX_TLS=tcp), which NCCL does not read",
        ),
        (
            ["FI_PROVIDER=tcp", "NCCL_DEBUG=INFO"],
            "Pass job.rdma {PID}: libfabric by TCP (FI_PROVIDER=tcp), which NCCL does not read",
        ),
        (
            // Each image of NVIDIA has this.
            ["UCX_TLS=tcp", "NCCL_VERSION=2.27.3"],
            "Fail job.rdma {PID}: UCX_TLS=tcp turns RDMA off",
        ),
        (
            ["UCX_TLS=tcp", "NCCL_PLUGIN_P2P=ucx"],
            "Fail job.rdma {PID}: UCX_TLS=tcp turns RDMA off",
        ),
        (
            ["NCCL_NET=IBext_v8", "NCCL_IBEXT_DISABLE=1"],
            "Fail job.rdma {PID}: NCCL_IBEXT_DISABLE=1 turns RDMA off",
        ),
        (
            ["FI_PROVIDER=tcp", "NCCL_NET=AWS Libfabric"],
            "Fail job.rdma {PID}: FI_PROVIDER=tcp turns RDMA off",
        ),
    ] {
        assert_eq!(
            with_settings(&settings)[0],
            said.replace("{PID}", PID),
            "{settings:?}"
        );
    }
    for of_the_other in [
        ["NCCL_NET=IBext_v8", "NCCL_IB_DISABLE=1"],
        ["NCCL_NET=IB", "NCCL_IBEXT_DISABLE=1"],
    ] {
        assert_eq!(with_settings(&of_the_other), [""; 0], "{of_the_other:?}");
    }
    let mut facts = HEALTHY.clone();
    facts.processes.truncate(1);
    let settings = [("UCX_TLS", "tcp"), ("NCCL_DEBUG", "INFO")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    facts.processes[0].environ = Reading::Known(settings.to_vec());
    facts.processes[0].from_conf = 1;
    assert_eq!(
        of_check("job.rdma", &facts),
        [format!("Fail {PID}: UCX_TLS=tcp turns RDMA off")],
        "every process of the machine has the settings of /etc/nccl.conf"
    );
    facts.processes[0].has_qps = true;
    assert_eq!(
        of_check("job.rdma", &facts),
        [format!(
            "Pass {PID}: UCX by TCP (UCX_TLS=tcp), and RDMA all the same: the job has queue pairs"
        )]
    );
}

/// Returns the lines that one check writes about the facts.
fn of_check(id: &str, facts: &Facts) -> Vec<String> {
    let report = examine(facts);
    let lines = report.lines.iter().filter(|line| line.id == id);
    lines
        .map(|line| format!("{:?} {}", line.status, line.text))
        .collect()
}

#[test]
fn a_pod_has_the_devices_that_it_sees_and_not_the_machines() {
    let mut facts = HEALTHY.clone();
    facts.processes.truncate(1);
    facts.processes[0].environ = Reading::Known(vec![("NCCL_IB_HCA".to_owned(), "=mlx5_12".to_owned())]);
    let line = "Fail PID 4711 (python3): NCCL_IB_HCA==mlx5_12 takes no RDMA device";
    assert_eq!(
        of_check("job.devices", &facts),
        [format!("{line} that this machine has")]
    );
    facts.host.exclusive = true;
    assert_eq!(
        of_check("job.devices", &facts),
        ["Unknown whether PID 4711 (python3) has the devices of NCCL_IB_HCA==mlx5_12"]
    );
    let remedy = |sees: Reading<Vec<(String, bool)>>| {
        let mut facts = facts.clone();
        (facts.processes[0].sees, facts.host.root) = (sees, false);
        let report = examine(&facts);
        let line = report.lines.iter().find(|line| line.id == "job.devices").unwrap();
        line.remedy.to_string()
    };
    assert_eq!(remedy(Reading::Absent), "", "root finds no more where nothing is");
    assert!(remedy(Reading::Unreadable("it is so".into())).starts_with("sudo rdmatop doctor"));
    facts.processes[0].sees = Reading::Known(vec![("mlx5_12".to_owned(), true)]);
    assert_eq!(
        of_check("job.devices", &facts),
        ["Pass NCCL_IB_HCA==mlx5_12 takes mlx5_12"]
    );
    let mut other = facts.processes[0].clone();
    (other.pid, other.sees) = (4712, Reading::Known(vec![("mlx5_0".to_owned(), true)]));
    facts.processes.push(other);
    assert_eq!(
        of_check("job.devices", &facts),
        [
            "Pass NCCL_IB_HCA==mlx5_12 takes mlx5_12".to_owned(),
            format!("{} that the job finds", line.replace("4711", "4712"))
        ],
        "what one finds another need not have"
    );
    let some = ("NCCL_IB_HCA".to_owned(), "mlx5_0,mlx5_12".to_owned());
    facts.processes.remove(0);
    facts.processes[0].environ = Reading::Known(vec![some]);
    assert_eq!(
        of_check("job.devices", &facts),
        ["Warn PID 4712 (python3): NCCL_IB_HCA names mlx5_12, which the job lacks"]
    );
}

#[test]
fn a_gid_matters_on_the_devices_that_the_job_finds() {
    let mut facts = HEALTHY.clone();
    facts.processes.truncate(1);
    let index = ("NCCL_IB_GID_INDEX".to_owned(), "3".to_owned());
    facts.processes[0].environ = Reading::Known(vec![index]);
    facts.processes[0].sees = Reading::Known(vec![("mlx5_1".to_owned(), true)]);
    super::port(&mut facts, 0).gids = Reading::Known(Vec::new());
    let said = "Pass NCCL_IB_GID_INDEX=3 is a RoCE v2 address (GID) of mlx5_1";
    assert_eq!(of_check("job.gid", &facts), [said]);
}

#[test]
fn a_device_without_a_file_in_dev_is_none_of_the_job() {
    let mut facts = HEALTHY.clone();
    facts.processes.truncate(1);
    let set = |facts: &mut Facts, name: &str, value: &str| {
        facts.processes[0].environ = Reading::Known(vec![(name.to_owned(), value.to_owned())]);
    };
    let both = ["mlx5_0", "mlx5_1"].map(|name| (name.to_owned(), true));
    facts.processes[0].sees = Reading::Known(both.to_vec());
    super::port(&mut facts, 0).gids = Reading::Known(Vec::new());
    set(&mut facts, "NCCL_IB_GID_INDEX", "3");
    assert_eq!(
        of_check("job.gid", &facts),
        ["Fail PID 4711 (python3): NCCL_IB_GID_INDEX=3 is no address (GID) of mlx5_0"]
    );
    assert!(of_check("port.gid", &facts)[0].starts_with("Fail mlx5_0"));
    let files = Reading::Known(vec![("uverbs1".to_owned(), Some(true))]);
    (facts.view.nodes, facts.processes[0].nodes) = (files.clone(), files);
    assert_eq!(
        of_check("job.gid", &facts),
        ["Pass NCCL_IB_GID_INDEX=3 is a RoCE v2 address (GID) of mlx5_1"]
    );
    assert!(of_check("port.gid", &facts)[0].starts_with("Pass "));
    set(&mut facts, "NCCL_IB_HCA", "=mlx5_0");
    assert_eq!(
        of_check("job.devices", &facts),
        ["Fail PID 4711 (python3): NCCL_IB_HCA==mlx5_0 takes no RDMA device that the job finds"]
    );
}
