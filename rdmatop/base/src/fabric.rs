//! What to do about a port of InfiniBand. It has no network interface, so nothing of ip(8) and ethtool(8)
//! says anything of it; infiniband-diags does.

use crate::step::{NextStep, ShellWord, step};

/// A port that is not ACTIVE. In INIT and ARMED it has a signal and waits for its subnet manager. Only an
/// ACTIVE port knows the subnet manager's address: sminfo(8) on this port would ask the port itself. `active`
/// is such a port of this host.
pub fn bring_up(device: &str, port: u32, has_signal: bool, active: Option<(&str, u32)>) -> NextStep {
    if let Some((beside, number)) = active.filter(|_| has_signal) {
        return step!(
            "sudo sminfo -C {} -P {}   # asks by {}/{}, which is ACTIVE   # no answer -> the subnet manager is down: ask who runs it (UFM, switch, host)   # an answer -> \
             its log says why not {}/{}; or that is in another fabric   # two hosts without a switch -> start opensm on one of them",
            ShellWord::device(beside),
            number,
            ShellWord::said(beside),
            number,
            ShellWord::said(device),
            port
        );
    }
    if has_signal {
        return step!(
            "sudo sminfo -C DEVICE -P PORT   # of a port that is ACTIVE in this fabric, on any host: an answer -> the subnet manager is there, and its \
             log says why {}/{} is not   # no answer, no ACTIVE port -> it is down: ask who runs it (UFM, switch, host)   # a cable \
             between two hosts, no switch -> start opensm on one of them",
            ShellWord::said(device),
            port
        );
    }
    step!(
        "ibstat {} {}   # Polling -> plug in the cable; it is in -> switch on the port at its other end, or change cable or transceiver   # Disabled -> \
         somebody switched it off: ask who runs the fabric   # LinkUp -> a virtual function (SR-IOV): ask who runs its card's host",
        ShellWord::device(device),
        port
    )
}

/// A port whose link is slower than those beside it.
pub fn speed_up(device: &str, port: u32) -> NextStep {
    step!(
        "sudo iblinkinfo -C {} -P {} -D 0   # prints Could be -> both ends can do more: change cable or transceiver (the job stops meanwhile), unless one is set \
         to less   # does not -> one end can do no more: only another card or switch port helps",
        ShellWord::device(device),
        port
    )
}

/// Links with errors in the fabric of a port. A host may have ports in several fabrics.
pub fn bad_links(device: &str, port: u32) -> NextStep {
    let device = ShellWord::device(device);
    step!(
        "sudo ibdiagnet -i {} -p {}   # names links with errors -> change cable or transceiver there, else the switch's port; again -> the switch's log   # not \
         installed -> sudo ibqueryerrors -C {} -P {}",
        device,
        port,
        device,
        port
    )
}

/// What to do where NCCL finds EFA's devices alone, and has no plug-in for them. It loads one with its first
/// communicator: before that there is none in any process.
pub fn efa_plugin(before_that: &NextStep) -> NextStep {
    step!(
        "if NCCL has begun (a line `NCCL version` in its log): install aws-ofi-nccl (libnccl-net-ofi.so, of the EFA installer) where the job runs, \
         with its directory in LD_LIBRARY_PATH; start the job with NCCL_DEBUG=INFO: a line `NET/OFI Selected provider is efa` says that it is used; \
         else {}",
        before_that.clone()
    )
}

/// What to do about a network device of a bond that is down, or outside of its aggregate (LACP).
pub fn bond_member(bond: Option<&str>, member: &str, outside: bool) -> NextStep {
    if outside {
        return step!(
            "sudo cat /proc/net/bonding/{}   # Partner Mac Address of {} is 00:00:00:00:00:00 -> the switch's port speaks no LACP   # another one than \
             that of the other links -> the wrong switch or port; put it into their port channel   # two switches on purpose, one in reserve -> leave it",
            ShellWord::or(bond, "BOND"),
            ShellWord::said(member)
        );
    }
    step!(
        "ip link show dev {}   # NO-CARRIER -> plug in the cable, or switch on the port at its other end   # DOWN -> until the next boot: sudo ip \
         link set dev {} up",
        ShellWord::netdev(member),
        ShellWord::netdev(member)
    )
}
