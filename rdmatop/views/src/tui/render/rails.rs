//! Tx and Rx of all ports side by side, on every tab: one sees at once a port that is hot, idle, or gets all
//! receives. Where there is room, the links of a bond stand behind its port.

use std::{fmt::Write as _, iter, sync::Arc};

use rdmatop_model::ib::PortState;
use rdmatop_model::snapshot::{Member, PortRow};
use rdmatop_model::value::Counter;

use super::super::columns::{self, Cell};
use super::super::format;
use super::super::layout::Layout;
use super::super::state::State;
use super::super::text;
use super::super::theme::Tone;
use super::{Canvas, put};

/// A bar of more columns would show nothing more.
const WIDEST: usize = 20;
/// From this width a bar and its number have a space between them.
const ROOMY: usize = 9;

/// Draws the strip where the layout has room for it.
pub(super) fn draw(state: &State, layout: &Layout, canvas: &mut Canvas) {
    if layout.rails.height == 0 {
        return;
    }
    let (ports, scale) = (&state.snapshot.ports, &state.snapshot.judgement.scale);
    let what = match (scale.link, scale.packets) {
        (true, _) => "% of link",
        (false, true) => "pkt/s",
        (false, false) => state.settings.units.per_second(),
    };
    let room = usize::from(layout.rails.width).saturating_sub("Tx : ".len() + what.len());
    let members: Vec<Vec<PortRow>> = ports.iter().map(links).collect();
    let parts = ports.iter().zip(&members);
    let with_members: Vec<&PortRow> = parts
        .flat_map(|(port, links)| iter::once(port).chain(links))
        .collect();
    let all_names = whole_names(&with_members);
    let longest = widest(&all_names);
    let all_fit = !scale.packets && fit(&all_names, longest, room);
    let (ports, (names, longest)) = if all_fit && with_members.len() > ports.len() {
        (with_members, (all_names, longest))
    } else {
        let ports: Vec<&PortRow> = ports.iter().collect();
        let names = labels(&ports, room);
        (ports, names)
    };
    let plan = Plan::of(room, names.len(), longest);
    for (y, (side, tone)) in [("Tx", Tone::Tx), ("Rx", Tone::Rx)].into_iter().enumerate() {
        let mut line = Cell::new(format!("{side} {what}: "), Tone::Dim);
        let mut gap = 0;
        for (port, name) in ports.iter().copied().zip(&names).take(plan.shown) {
            if plan.label > 0 {
                let blanks = plan.label - longest;
                line = line.and(format!("{:gap$}{name:>longest$}{:blanks$}", "", ""), Tone::Dim);
            } else if gap > 0 {
                line = line.and(" ".repeat(gap), Tone::Dim);
            }
            gap = plan.gap;
            let counter = if y == 0 {
                scale.sent(port)
            } else {
                scale.received(port)
            };
            line.0.extend(bar(state, port, counter, plan.bar, tone).0);
        }
        let more = names.len() - plan.shown;
        if more > 0 {
            line = line.and(format!("{:gap$}+{more}", ""), Tone::Dim);
        }
        put(state, canvas, layout.rails, y, &line);
    }
}

/// How the columns of a line are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    shown: usize,
    /// Columns of a name, and of the space behind it if there is room for one; 0: no names are shown.
    label: usize,
    bar: usize,
    gap: usize,
}

impl Plan {
    /// The plan for this many ports, whose longest name takes `name` columns.
    fn of(room: usize, ports: usize, name: usize) -> Self {
        let each = room / ports.max(1);
        if each < 2 {
            // The last four columns are for the number of ports that are left out, ` +99`.
            let most = if each == 0 { room.saturating_sub(4) } else { room };
            return Self {
                shown: ports.min(most),
                label: 0,
                bar: 1,
                gap: 0,
            };
        }
        // Even a bar of one column has eight steps, and a name tells to which port it belongs.
        let label = match each.saturating_sub(name) {
            _ if name == 0 => 0,
            0 | 1 => 0,
            2 => name,
            _ => name + 1,
        };
        Self {
            shown: ports,
            label,
            bar: (each - label - 1).clamp(1, WIDEST),
            gap: 1,
        }
    }
}

/// A port's share as a bar in `width` columns, with its number at the end if there is room. A port that is
/// not ACTIVE shows its state instead.
fn bar(state: &State, port: &PortRow, counter: Option<Counter>, width: usize, tone: Tone) -> Cell {
    if let Some(down) = port.state.filter(|state| !PortState::is_active(*state)) {
        let word = text::cut(&down.to_string(), width, "x");
        return Cell::new(format!("{word:<width$}"), Tone::Bad);
    }
    let scale = &state.snapshot.judgement.scale;
    let Some(share) = scale.share(port, counter) else {
        return Cell::new(format!("{:<width$}", format::UNKNOWN), Tone::Dim);
    };
    let number = number(state, share, counter);
    let wide = text::width(&number);
    // With a number, there would be no bar.
    if wide + 1 > width {
        return columns::bar(&state.ctx(), share, width, tone);
    }
    let gap = usize::from(width >= ROOMY);
    let bar = columns::bar(&state.ctx(), share, width - wide - gap, tone);
    let tone = if share <= 0.0 { Tone::Dim } else { Tone::Normal };
    bar.and(format!("{:gap$}{number}", ""), tone)
}

/// The number for a bar: percent of the link, or the rate if a full bar means the busiest port.
fn number(state: &State, share: f64, counter: Option<Counter>) -> String {
    let scale = &state.snapshot.judgement.scale;
    if scale.link {
        return format::percent(share);
    }
    let rate = counter.and_then(|counter| counter.rate).unwrap_or(0.0);
    format::si(if scale.packets {
        rate
    } else {
        state.settings.units.of_bytes(rate)
    })
}

/// The links of a port's bond, each as a port.
fn links(port: &PortRow) -> Vec<PortRow> {
    let members = port.bond.iter().flat_map(|bond| &*bond.members);
    let link = |member: &Member| PortRow {
        device: Arc::clone(&member.name),
        device_uid: port.device_uid,
        state: (member.up == Some(false)).then_some(PortState(1)),
        rate_bps: member.rate_bps,
        tx_bytes: member.tx_bytes,
        rx_bytes: member.rx_bytes,
        ..PortRow::default()
    };
    members.map(link).collect()
}

/// Names of ports, and the width of the longest. They are whole where a roomy bar has room beside each; a
/// number alone could be read as that of the bar.
fn labels(ports: &[&PortRow], room: usize) -> (Vec<String>, usize) {
    let plain = whole_names(ports);
    let whole = with_links(ports, plain.clone());
    let longest = widest(&whole);
    if fit(&whole, longest, room) {
        return (whole, longest);
    }
    let short = with_links(ports, short_names(&plain));
    let longest = widest(&short);
    (short, longest)
}

fn widest(names: &[String]) -> usize {
    names.iter().map(|name| text::width(name)).max().unwrap_or(0)
}

/// Whether there is room for a roomy bar beside each name, a space behind the name, and one behind the bar.
fn fit(names: &[String], longest: usize, room: usize) -> bool {
    (longest + ROOMY + 2).saturating_mul(names.len()) <= room
}

/// Adds how many links of a bond are up, if that is known of each, and how many it has.
fn with_links(ports: &[&PortRow], mut names: Vec<String>) -> Vec<String> {
    for (port, name) in ports.iter().zip(&mut names) {
        if let Some(bond) = &port.bond {
            let _ = write!(name, " {} up", bond.links_up());
        }
    }
    names
}

/// Names of ports, with their number where the device has several.
fn whole_names(ports: &[&PortRow]) -> Vec<String> {
    let name = |port: &&PortRow| {
        // A link of a bond has its device's number.
        let of_device = ports
            .iter()
            .filter(|other| (other.device_uid, &other.device) == (port.device_uid, &port.device));
        match of_device.count() {
            1 => port.device.to_string(),
            _ => format!("{}/{}", port.device, port.port),
        }
    };
    ports.iter().map(name).collect()
}

/// Names without the beginning and the end that all have in common.
fn short_names(whole: &[String]) -> Vec<String> {
    let first = whole.first().map_or("", String::as_str);
    // Numbers are not split: the names become 1 and 10, not an empty one and 0.
    let is_digit = |at: usize| first.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    let mut heads = (1..=first.len()).rev().filter(|at| !is_digit(at - 1));
    let mut tails = (0..first.len()).filter(|at| !is_digit(*at));
    let head = heads.find_map(|at| {
        let head = first.get(..at)?;
        whole.iter().all(|name| name.starts_with(head)).then_some(head)
    });
    let tail = tails.find_map(|at| {
        let tail = first.get(at..)?;
        whole.iter().all(|name| name.ends_with(tail)).then_some(tail)
    });
    let short = |name: &String| {
        let rest = name.strip_prefix(head.unwrap_or(""));
        let rest = rest.and_then(|rest| rest.strip_suffix(tail.unwrap_or("")));
        rest.filter(|rest| !rest.is_empty()).unwrap_or(name).to_owned()
    };
    whole.iter().map(short).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_model::{snapshot::Bond, testkit::rows};

    fn ports(names: &[&str]) -> Vec<PortRow> {
        let one = |(n, name): (u64, &&str)| rows::rail(n, name, None, None, None).1;
        (1..).zip(names).map(one).collect()
    }

    fn short(names: &[&str]) -> Vec<String> {
        short_names(&whole_names(&ports(names).iter().collect::<Vec<_>>()))
    }

    #[test]
    fn names_are_whole_where_there_is_room_for_a_bar_and_its_number() {
        let four = ports(&["rxe0", "rxe1", "rxe2", "rxe3"]);
        let four: Vec<&PortRow> = four.iter().collect();
        assert_eq!(labels(&four, 69).0, ["rxe0", "rxe1", "rxe2", "rxe3"]);
        assert_eq!(labels(&four, 59).0, ["0", "1", "2", "3"]);
        assert_eq!(labels(&[], 69), (Vec::new(), 0));
    }

    #[test]
    fn a_bond_says_how_many_of_its_links_are_up() {
        let mut bonds = ports(&["mlx5_bond_0", "mlx5_bond_1", "mlx5_bond_2"]);
        for (port, second) in bonds.iter_mut().zip([Some(true), Some(false), None]) {
            let link = |up| Member {
                name: "eth0".into(),
                up,
                outside: false,
                rate_bps: None,
                tx_bytes: None,
                rx_bytes: None,
            };
            port.bond = Some(Bond {
                mode: None,
                members: [link(Some(true)), link(second)].into(),
            });
        }
        let bonds: Vec<&PortRow> = bonds.iter().collect();
        let whole = ["mlx5_bond_0 2/2 up", "mlx5_bond_1 1/2 up", "mlx5_bond_2 ?/2 up"];
        assert_eq!(labels(&bonds, 109).0, whole);
        assert_eq!(labels(&bonds, 60).0, ["0 2/2 up", "1 1/2 up", "2 ?/2 up"]);
    }

    #[test]
    fn a_name_loses_what_all_have_in_common_and_keeps_its_number_whole() {
        assert_eq!(short(&["mlx5_1", "mlx5_10", "mlx5_12"]), ["1", "10", "12"]);
        assert_eq!(short(&["rocep23s0", "rocep97s0"]), ["23", "97"]);
        assert_eq!(short(&["rdmap0x", "rdmap16x"]), ["0", "16"]);
        assert_eq!(short(&["rxe0", "siw0"]), ["rxe0", "siw0"]);
        assert_eq!(short(&["a", "a"]), ["a", "a"]);
        assert_eq!(short(&["é1", "è1"]), ["é1", "è1"]);
        assert_eq!(short(&[]), [""; 0]);
        let mut two = ports(&["mlx4_0", "mlx4_0"]);
        (two[1].device_uid, two[1].port) = (1, 2);
        assert_eq!(short_names(&whole_names(&[&two[0], &two[1]])), ["1", "2"]);
    }

    #[test]
    fn all_ports_have_room_in_one_line() {
        for ports in 2..200 {
            for name in 0..20 {
                for room in [20, 69, 109, 189] {
                    let plan = Plan::of(room, ports, name);
                    let used = plan.shown * (plan.label + plan.bar + plan.gap);
                    assert!(plan.bar >= 1 && used <= room, "{ports} {name} {room} {plan:?}");
                    assert!(plan.shown == ports || used + 4 <= room);
                }
            }
        }
        let named = |ports, name| Plan::of(69, ports, name).label > 0;
        assert!(
            named(8, 1) && named(16, 1),
            "sixteen of 69 columns have names of one digit"
        );
    }
}
