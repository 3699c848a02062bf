//! What drivers write into the kernel's log, by what it says: the level that a driver chooses does not say
//! how bad a line is.
//!
//! Texts are those of Linux 6.1 to 7.2, and NVIDIA's NVSentinel and gpud look for the worst of them too.

use crate::step::{NextStep, step};

/// How bad a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// It is no error, whatever its level.
    Harmless,
    /// Something did not work.
    Warning,
    /// The device does not work until somebody does something.
    Critical,
}

/// A line that is known.
pub struct KnownLine {
    /// It has all of these, in this order.
    pub parts: &'static [&'static str],
    /// How bad it is.
    pub weight: Weight,
    /// What it means, a sentence without its full stop.
    pub meaning: &'static str,
    /// What to do.
    pub next: fn() -> NextStep,
}

fn reset() -> NextStep {
    step!(
        "sudo dmesg > nic.log; sudo devlink health show   # keep both for the vendor, they are lost by a reset   # the driver brings the NIC back by \
         itself -> nothing more   # it does not -> end the jobs, then reset the NIC or reboot; again -> firmware, card"
    )
}

fn module() -> NextStep {
    step!("change the transceiver or the cable of that module; again -> the card's slot: power, cooling")
}

fn bus() -> NextStep {
    step!("sudo lspci -tv   # finds the slot; reseat the card; again -> riser, slot, card")
}

fn air() -> NextStep {
    step!("check the fans of this host and the air around the card")
}

/// A command that did not work, of a device that does.
pub fn command() -> NextStep {
    step!(
        "sudo dmesg > nic.log   # the driver names what failed there -> keep it for the vendor; nothing more is to be done where no job fails"
    )
}

fn nothing() -> NextStep {
    step!("nothing is to be done")
}

/// A table of lines: how bad one is, what to do, and its parts; what it means. docs/remedies.md
/// says where each comes from.
macro_rules! lines {
    ($($weight:ident $next:ident $parts:tt $meaning:literal;)+) => {
        &[$(KnownLine {
            parts: &$parts,
            weight: Weight::$weight,
            meaning: $meaning,
            next: $next,
        },)+]
    };
}

/// The first that fits counts.
pub static KNOWN: &[KnownLine] = lines! {
    Critical reset ["timeout. Will cause a leak of a command resource"]
        "the firmware of the NIC did not answer a command: it hangs, and each such command is lost for good";
    Critical reset ["device's health compromised - reached miss count"]
        "the firmware of the NIC has stopped";
    Critical reset ["Fatal error ", " detected"]
        "the NIC has reported a fatal error of itself";
    Critical reset ["health recovery fail"]
        "the driver could not bring the NIC back after an error";
    Critical reset ["unrecoverable hardware error"]
        "the NIC has reported an error of its hardware that only a reset ends, if anything does";
    Warning air ["Health issue observed", "High temperature"]
        "the NIC is hot; hotter, it switches itself off";
    Warning command ["Health issue observed"]
        "the NIC reports a problem of itself; the lines behind it say which";
    Critical module ["Port module event[error]", "Power budget exceeded"]
        "the transceiver takes more power than the port may give, and is off";
    Critical module ["Port module event[error]", "High Temperature"]
        "the transceiver is too hot, and is off";
    Warning module ["Port module event[error]"]
        "the port cannot use its transceiver or cable";
    Warning air ["High temperature on sensors with bit set"]
        "the NIC is hot; hotter, it switches itself off";
    Harmless nothing ["ACCESS_REG(0x805)", " failed, status bad "]
        "something asked for a register that this function of the NIC does not give, as of the ports of an NVSwitch";
    Harmless nothing ["Detected insufficient power on the PCIe slot"]
        "the slot promises less power than the card may take; boards that power it in another way log it too (DGX Spark)";
    Harmless nothing ["failed to get umem"]
        "a program gave memory that cannot be pinned, and has the error: an address that is not its own, or its limit";
    Harmless nothing ["Failed to get umem"]
        "a program gave memory that cannot be pinned, and has the error: an address that is not its own, or its limit";
    Harmless nothing ["failed to alloc pbl mtr"]
        "a program gave memory that cannot be registered, and has the error; the line before says why";
    Critical bus ["PCIe Bus Error: severity=Uncorrect"]
        "a transfer over PCI Express failed";
    Warning command ["NETDEV WATCHDOG", "timed out"]
        "the NIC sent nothing of a queue of its interface for seconds; the driver now tries to mend that";
    Critical reset ["TX timeout detected, starting reset task"]
        "the NIC has stopped sending, and the driver resets it";
    Critical reset ["Error (timeout: ", ") msg {"]
        "the firmware of the NIC did not answer a command";
    Critical reset ["Firmware reset aborted"]
        "the driver could not restart the firmware of the NIC";
    Critical reset ["FW STALL Detected. cmdq["]
        "the firmware of the NIC does not answer, and gets no other command";
    Critical reset ["Internal error detected"]
        "the NIC has reported a fatal error of itself, and the driver resets it";
    Critical reset ["communication channel command ", " timed out"]
        "the driver on the host did not answer a command of this virtual function, which is reset";
    Critical reset ["timed out (go bit not cleared)"]
        "the firmware of the NIC did not answer a command";
    Critical reset ["The device didn't send any completion for admin cmd"]
        "the NIC did not answer a command, and gets no other";
    Critical reset ["Wait for completion (polling) timeout"]
        "the NIC did not answer a command, and gets no other";
    Critical reset ["Admin queue is closed"]
        "the NIC gets no commands, because it did not answer one before";
    Critical reset ["critical PE Error, GLPE_CRITERR="]
        "the NIC has reported a fatal error of itself, and the driver resets it";
    Critical reset ["Requesting a reset"]
        "the NIC did not answer a command or reported a fatal error, and the driver resets it";
    Warning command ["cqp opcode = ", " maj_err_code = "]
        "the NIC refused a command, and what the driver gave it for has failed";
    Harmless nothing ["abnormal ae_id = ", " bool qp=1"]
        "a QP went to ERR, and its program has the error: its peer is gone, or one of the two is wrong";
    Critical reset ["FW heartbeat stalled at"]
        "the firmware of the NIC has stopped; the driver waits until it runs again";
    Critical reset ["DEVCMD ", ") timeout after "]
        "the firmware of the NIC did not answer a command";
    Critical reset ["admin command timed out, aq "]
        "the NIC did not answer a command, and the driver resets its RDMA device";
    Critical reset ["HWC: Request timed out"]
        "the NIC did not answer a command";
    Critical reset ["Command 0x", " timed out: ", " ms"]
        "the NIC did not answer a command";
    Warning command ["HWC: Failed hw_channel req: "]
        "the NIC refused a command, and what the driver gave it for has failed";
    Warning command ["Command 0x", " failed with status: "]
        "the NIC refused a command, and what the driver gave it for has failed";
    Critical reset ["EQ ", ": overflow detected"]
        "events of the NIC were lost: what waits for them may wait for ever";
    Critical reset ["MANA reset cycle failed"]
        "the driver could not bring the NIC back after an error";
    Critical reset ["encountered fatal error, adapter stopped"]
        "the driver has stopped the NIC after a fatal error; the line before says which";
    Critical reset ["Firmware reports adapter error"]
        "the firmware of the NIC reports that it cannot go on";
    Critical reset ["FW assertion at "]
        "the firmware of the NIC has stopped at an error of its own";
    Critical reset ["command ", " in mailbox ", " timed out"]
        "the firmware of the NIC did not answer a command";
    Critical reset ["Fatal error - DB overflow recovery failed"]
        "the driver could not tell the NIC again what programs have posted: their QPs stand";
    Critical air ["Critical temperature reached! Forcing device into freeze mode"]
        "the NIC is too hot, and has switched itself off";
    Critical reset ["Lost 8051 heartbeat"]
        "the firmware of the port has stopped";
    Critical reset ["8051 host command ", " timeout"]
        "the firmware of the port did not answer a command, and gets no other";
    Critical reset ["Aborted freeze recovery"]
        "the driver could not bring the NIC back after an error";
    Warning module ["QSFP cable temperature too high"]
        "the transceiver is hot; hotter, it switches itself off";
    Harmless nothing ["]QP event ", " on handle "]
        "a QP has an event, mostly that it went to ERR, and its program has it, too";
    Warning command ["]CQ event ", " on handle "]
        "a CQ has an error: it was too small for what its program let complete, which has the error, too";
    Critical reset ["wait init done failed"]
        "the NIC did not begin, and has no RDMA device";
};

/// What a line of the log is known for.
pub fn of(text: &str) -> Option<&'static KnownLine> {
    // Each has its device or its driver and a colon before it. Other lines are many, and the table is long.
    if !text.contains(':') {
        return None;
    }
    let has_all = |known: &&KnownLine| {
        let mut rest = Some(text);
        for part in known.parts {
            rest = rest.and_then(|rest| rest.split_once(part)).map(|(_, rest)| rest);
        }
        rest.is_some()
    };
    KNOWN.iter().find(has_all)
}

/// How bad a line is: a known one by the table; any other, which was logged as an error, is a warning.
pub fn weight(text: &str) -> Weight {
    of(text).map_or(Weight::Warning, |known| known.weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_judged_by_what_they_say() {
        let mlx5 = |text: &str| of(&format!("mlx5_core 0000:3b:00.0: {text}")).map(|known| known.weight);
        for (text, weight) in [
            (
                "wait_func:1186:(pid 411): ACCESS_REG(0x805) timeout. Will cause a leak of a command resource",
                Some(Weight::Critical),
            ),
            (
                "cmd[3]: MODIFY_RQ(0x909) Async, timeout. Will cause a leak of a command resource",
                Some(Weight::Critical),
            ),
            (
                "poll_health:785:(pid 0): Fatal error 1 detected",
                Some(Weight::Critical),
            ),
            (
                "Port module event[error]: module 0, Cable error, Power budget exceeded",
                Some(Weight::Critical),
            ),
            (
                "Port module event[error]: module 0, Cable error, Bad or shorted cable/module",
                Some(Weight::Warning),
            ),
            (
                "mlx5_pcie_event:301:(pid 9): Detected insufficient power on the PCIe slot (27W).",
                Some(Weight::Harmless),
            ),
            ("failed to alloc pbl mtr, ret = -14.", Some(Weight::Harmless)),
            (
                "print_health_info:431:(pid 0): Health issue observed, unrecoverable hardware error, severity(3) ERROR:",
                Some(Weight::Critical),
            ),
            (
                "print_health_info:431:(pid 0): Health issue observed, High temperature, severity(4) WARNING:",
                Some(Weight::Warning),
            ),
            (
                "mlx5_cmd_out_err:838:(pid 9): ACCESS_REG(0x805) op_mod(0x1) failed, status bad resource(0x5), syndrome (0x305684), err(-22)",
                Some(Weight::Harmless),
            ),
            (
                "mlx5_cmd_out_err:838:(pid 9): ACCESS_REG(0x805) op_mod(0x1) failed, status internal error(0x1), syndrome (0x0), err(-5)",
                None,
            ),
            (
                "rocep76s0: abnormal ae_id = 0x501 bool qp=1 qp_id = 7, ae_src=3",
                Some(Weight::Harmless),
            ),
            ("hfi1_0: 8051 host command 6 timeout", Some(Weight::Critical)),
            ("command 0x3 in mailbox 4 timed out", Some(Weight::Critical)),
            ("HWC: Request timed out: 15000 ms", Some(Weight::Critical)),
            ("Command 0x20007 timed out: 30000 ms", Some(Weight::Critical)),
            ("Command 0x20007 failed with status: 0x4", Some(Weight::Warning)),
            (
                "[qedr_affiliated_event:754(qedr0)]QP event 3 on handle 00000000c3",
                Some(Weight::Harmless),
            ),
            ("Port module event: module 0, Cable unplugged", None),
            (
                "CREATE_QP(0x500) op_mod(0x0) failed, status bad parameter(0x3)",
                None,
            ),
        ] {
            assert_eq!(mlx5(text), weight, "{text}");
        }
    }

    #[test]
    fn the_page_has_all_of_them() {
        const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/remedies.md");
        let page = std::fs::read_to_string(PAGE).unwrap();
        let (_, rest) = page.split_once("<!-- log -->\n").unwrap();
        let (table, _) = rest.split_once("<!-- end of log -->").unwrap();
        let mut rows = table.lines().skip(2);
        for known in KNOWN {
            let text = known.parts.join("` ... `");
            let begin = format!("| `{text}` | {:?} | {} | ", known.weight, known.meaning);
            let row = rows.next().unwrap_or_default();
            let source = row
                .strip_prefix(&begin)
                .and_then(|source| source.strip_suffix(" |"));
            assert!(
                source.is_some_and(|source| !source.is_empty()),
                "not {begin}SOURCE |: {row}"
            );
        }
        assert_eq!(rows.next(), None, "a row of no line");
    }

    #[test]
    fn each_line_is_found_by_its_own_text_and_says_what_to_do() {
        for known in KNOWN {
            let text = format!("driver 0000:3b:00.0: {}", known.parts.join("x"));
            assert!(
                std::ptr::eq(of(&text).unwrap(), known),
                "{text}: an earlier one hides it"
            );
            assert!(!known.meaning.is_empty() && !(known.next)().is_empty());
        }
    }
}
