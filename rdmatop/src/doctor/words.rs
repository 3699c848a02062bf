//! Words and numbers as the page has them.

use super::facts::{Device, Facts, Port};
pub(super) use crate::text::bytes;

/// Names that are listed before "and N more".
const NAMED: usize = 4;

/// A name's beginning and the number that it ends with.
fn split(name: &str) -> Option<(&str, u64)> {
    let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (head, tail) = name.split_at_checked(digits)?;
    Some((head, tail.parse().ok()?))
}

/// `mlx5_0 to mlx5_7`, `a and b`, `a, b, c, d and 4 more`.
pub(super) fn names<S: AsRef<str>>(all: &[S]) -> String {
    let all: Vec<&str> = all.iter().map(AsRef::as_ref).collect();
    let run = all.iter().map(|name| split(name)).collect::<Option<Vec<_>>>();
    let in_order = run.is_some_and(|run| {
        run.windows(2)
            .all(|two| two[0].0 == two[1].0 && Some(two[1].1) == two[0].1.checked_add(1))
    });
    match all.as_slice() {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first, .., last] if in_order && all.len() > 2 => format!("{first} to {last}"),
        [most @ .., last] if all.len() <= NAMED + 1 => format!("{} and {last}", most.join(", ")),
        _ => format!("{} and {} more", all[..NAMED].join(", "), all.len() - NAMED),
    }
}

/// `1 device`, `8 devices`.
pub(super) fn count(number: usize, one: &str) -> String {
    if number == 1 {
        format!("1 {one}")
    } else if let Some(stem) = one.strip_suffix("ss") {
        format!("{number} {stem}sses")
    } else {
        format!("{number} {one}s")
    }
}

/// `400 Gb/s`.
pub(super) fn rate(bits: u64) -> String {
    let tenths = bits / 100_000_000;
    match tenths % 10 {
        0 => format!("{} Gb/s", tenths / 10),
        part => format!("{}.{part} Gb/s", tenths / 10),
    }
}

/// `mlx5_0`, or `mlx5_0 port 2` of a device with several.
pub(super) fn port_name(device: &Device, port: &Port) -> String {
    if device.ports.len() > 1 {
        format!("{} port {}", device.name, port.number)
    } else {
        device.name.clone()
    }
}

impl Facts {
    /// Devices that answered.
    pub(super) fn answering(&self) -> impl Iterator<Item = &Device> {
        let all = self.devices.known().into_iter().flatten();
        all.filter(|device| !device.late && !device.dangling)
    }

    /// Of these, the ones with hardware.
    pub(super) fn hardware(&self) -> impl Iterator<Item = &Device> {
        self.answering().filter(|device| !device.software)
    }

    /// Ports of devices that answered.
    pub(super) fn ports(&self) -> impl Iterator<Item = (&Device, &Port)> {
        self.answering()
            .flat_map(|device| device.ports.iter().map(move |port| (device, port)))
    }
}

impl Port {
    /// Whether traffic can pass.
    pub(super) fn active(&self) -> bool {
        self.state.known() == Some(&4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_as_one_would_say_them() {
        let eight: Vec<String> = (0..8).map(|n| format!("mlx5_{n}")).collect();
        assert_eq!(names(&eight), "mlx5_0 to mlx5_7");
        assert_eq!(names(&["a"]), "a");
        assert_eq!(names(&["rxe0", "rxe1"]), "rxe0 and rxe1");
        assert_eq!(names(&["a", "c", "x"]), "a, c and x");
        assert_eq!(names(&["a", "b", "c", "d", "e", "f"]), "a, b, c, d and 2 more");
        assert_eq!(names(&["m1", "m2", "m4"]), "m1, m2 and m4");
        assert_eq!(
            names(&["m18446744073709551615", "m0", "m1"]),
            "m18446744073709551615, m0 and m1"
        );
        assert_eq!(names::<&str>(&[]), "");
    }

    #[test]
    fn numbers_have_units() {
        assert_eq!(
            (rate(400_000_000_000).as_str(), rate(2_500_000_000).as_str()),
            ("400 Gb/s", "2.5 Gb/s")
        );
        assert_eq!(
            (bytes(65536).as_str(), bytes(8 << 20).as_str()),
            ("64 KiB", "8 MiB")
        );
        assert_eq!(
            (
                bytes(1 << 30).as_str(),
                bytes(3 << 29).as_str(),
                bytes(5).as_str()
            ),
            ("1 GiB", "1.5 GiB", "5 bytes")
        );
        assert_eq!(
            (count(1, "process"), count(2, "process"), count(3, "port")),
            ("1 process".into(), "2 processes".into(), "3 ports".into())
        );
    }
}
