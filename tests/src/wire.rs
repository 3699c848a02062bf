//! A wire between two rxe devices of one network namespace, on which `tc netem` can drop packets.
//!
//! Traffic inside one rxe device never reaches the network stack. That of a veth pair does, if only packets
//! from it use the local routing table: else the kernel delivers to its own address directly.

use std::{fs, process::Command};

use anyhow::{Result, ensure};

use crate::{child::output, lab};

/// The passive end: device `rxb` on `vb`, 10.78.0.2.
pub const SERVER: &str = "rxb";
/// The active end: device `rxa` on `va`, 10.78.0.1.
pub const CLIENT: &str = "rxa";

/// The wire; drop removes it unless the lab made it.
#[derive(Debug)]
pub struct Wire {
    ours: bool,
}

/// The commands that make one pair of veth interfaces, `va` and `vb`.
const PAIR: &str = "
            ip link add va type veth peer name vb";

/// Two veth pairs, whose ends are the bonds `va` (of `va0` and `va1`) and `vb`. They distribute by Ethernet
/// addresses, of which there are only two, so one pair carries everything.
const BONDS: &str = "
            modprobe bonding max_bonds=0
            for bond in va vb; do
                ip link add $bond type bond mode balance-xor miimon 100
            done
            for at in 0 1; do
                ip link add va$at type veth peer name vb$at
                ip link set va$at master va
                ip link set vb$at master vb
            done";

impl Wire {
    /// Makes the wire, or uses the one of `lab run --wire`.
    pub fn up() -> Result<Self> {
        if fs::exists(format!("/sys/class/infiniband/{CLIENT}"))? {
            return Ok(Self { ours: false });
        }
        Self::over(PAIR)
    }

    /// Makes a wire of two links that form a bond at each end.
    pub fn bonded() -> Result<Self> {
        ensure!(
            !fs::exists(format!("/sys/class/infiniband/{CLIENT}"))?,
            "{CLIENT} is there already"
        );
        Self::over(BONDS)
    }

    fn over(interfaces: &str) -> Result<Self> {
        // From here on drop cleans up, whichever step fails.
        let wire = Self { ours: true };
        shell(&format!(
            "set -e
            modprobe veth{interfaces}
            ip address add 10.78.0.1/32 dev va
            ip address add 10.78.0.2/32 dev vb
            ip link set va up
            ip link set vb up
            for name in all va vb; do
                echo 1 >/proc/sys/net/ipv4/conf/$name/accept_local
                echo 0 >/proc/sys/net/ipv4/conf/$name/rp_filter
            done
            ip neighbour replace 10.78.0.2 lladdr $(cat /sys/class/net/vb/address) dev va nud permanent
            ip neighbour replace 10.78.0.1 lladdr $(cat /sys/class/net/va/address) dev vb nud permanent
            ip route add 10.78.0.2/32 dev va src 10.78.0.1 table 101
            ip route add 10.78.0.1/32 dev vb src 10.78.0.2 table 102
            ip rule add pref 1 iif va lookup local
            ip rule add pref 2 iif vb lookup local
            ip rule add pref 5 from 10.78.0.1 to 10.78.0.2 lookup 101
            ip rule add pref 6 from 10.78.0.2 to 10.78.0.1 lookup 102
            ip rule add pref 9 lookup local
            ip rule del pref 0
            rdma link add rxa type rxe netdev va
            rdma link add rxb type rxe netdev vb"
        ))?;
        for device in [CLIENT, SERVER] {
            lab::await_gid(device)?;
        }
        Ok(wire)
    }

    /// Loses `percent` of the packets from the active to the passive end until the guard is dropped.
    pub fn lose(&self, percent: &str) -> Result<Loss<'_>> {
        self.lose_at(&["va"], percent)
    }

    /// Drops packets like [`Self::lose`], in both directions.
    pub fn lose_both(&self, percent: &str) -> Result<Loss<'_>> {
        self.lose_at(&["va", "vb"], percent)
    }

    /// Delays each packet by `time`, in both directions.
    pub fn delay(&self, time: &str) -> Result<Loss<'_>> {
        self.impair(&["va", "vb"], &["delay", time])
    }

    fn lose_at(&self, ends: &'static [&'static str], percent: &str) -> Result<Loss<'_>> {
        self.impair(ends, &["loss", percent])
    }

    fn impair(&self, ends: &'static [&'static str], how: &[&str]) -> Result<Loss<'_>> {
        shell("modprobe sch_netem")?;
        let loss = Loss { _wire: self, ends };
        for end in ends {
            let netem = ["qdisc", "add", "dev", end, "root", "netem"];
            output(Command::new("tc").args(netem).args(how))?;
        }
        Ok(loss)
    }
}

/// The wire drops or delays packets until this is dropped.
#[derive(Debug)]
pub struct Loss<'a> {
    _wire: &'a Wire,
    ends: &'static [&'static str],
}

impl Loss<'_> {
    /// Sets another delay. It is changed in place: without a queueing discipline for a moment the wire would
    /// drop the delayed packets, and programs on Linux 7.2 then end with an error.
    pub fn change_delay(&self, time: &str) -> Result<()> {
        for end in self.ends {
            let netem = ["qdisc", "change", "dev", end, "root", "netem", "delay", time];
            output(Command::new("tc").args(netem))?;
        }
        Ok(())
    }
}

impl Drop for Loss<'_> {
    fn drop(&mut self) {
        for end in self.ends {
            let _ = output(Command::new("tc").args(["qdisc", "del", "dev", end, "root"]));
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.ours {
            let _ = shell(
                "ip rule add pref 0 lookup local
                for pref in 1 2 5 6 9; do ip rule del pref $pref; done
                rdma link delete rxa
                rdma link delete rxb
                for end in va va0 va1 vb; do ip link delete $end 2>/dev/null; done
                true",
            );
        }
    }
}

fn shell(script: &str) -> Result<String> {
    output(Command::new("sh").arg("-c").arg(script))
}
