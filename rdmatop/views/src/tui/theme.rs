//! Colours. A theme gives each tone a colour, and the terminal's depth decides how that is written.

use ratatui::style::{Color, Modifier, Style};

use rdmatop_model::judgement::Stuck;

/// What a piece of text means. Themes colour meanings, never places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Plain.
    Normal,
    /// Less important: unknown values, exited rows.
    Dim,
    /// More important.
    Strong,
    /// Titles, borders, key hints.
    Title,
    /// The value is in order.
    Good,
    /// Look here.
    Warn,
    /// Wrong.
    Bad,
    /// Sent.
    Tx,
    /// Received.
    Rx,
    /// What the user chose: sort column, active tab.
    Accent,
}

/// Colours the terminal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// No colours: `NO_COLOR`, `--no-color`, a dumb terminal.
    Mono,
    /// The sixteen of the terminal's own palette.
    Ansi16,
    /// 256.
    Ansi256,
    /// 24 bits.
    True,
}

impl Depth {
    /// Detects it by no-color.org, then COLORTERM, then TERM. `env` reads an environment variable.
    pub fn detect(env: impl Fn(&str) -> Option<String>) -> Self {
        let term = env("TERM").unwrap_or_default();
        if env("NO_COLOR").is_some_and(|v| !v.is_empty()) || term.is_empty() || term == "dumb" {
            return Self::Mono;
        }
        match env("COLORTERM").as_deref() {
            Some("truecolor" | "24bit") => Self::True,
            _ if term.contains("256color") || term.contains("kitty") || term.contains("alacritty") => {
                Self::Ansi256
            }
            _ => Self::Ansi16,
        }
    }
}

/// A colour in two forms: RGB, and the nearest of the terminal's sixteen.
type Ink = (Option<(u8, u8, u8)>, Color);

/// A theme. The inks: title, good, warn, bad, tx, rx, accent; then dim, and the selection's background.
#[derive(Debug)]
pub struct Theme {
    /// Name in the settings.
    pub name: &'static str,
    /// Who the theme is for.
    pub about: &'static str,
    inks: [Ink; 7],
    dim: Option<Ink>,
    ground: Option<Ink>,
    bold: bool,
}

const fn own(color: Color) -> Ink {
    (None, color)
}

const fn rgb(r: u8, g: u8, b: u8, near: Color) -> Ink {
    (Some((r, g, b)), near)
}

/// Every theme; the first is the default.
pub const THEMES: &[Theme] = &[
    // The background is unknown. These inks have a contrast of 4.5:1 with both black and white, which takes a
    // luminance between 0.175 and 0.183. Of the sixteen colours, palettes agree only on red and magenta.
    Theme {
        name: "default",
        about: "readable on light and on dark ground",
        inks: [
            rgb(0, 127, 163, Color::Reset),
            rgb(0, 136, 16, Color::Reset),
            rgb(176, 96, 0, Color::Magenta),
            rgb(228, 20, 90, Color::Red),
            rgb(0, 132, 110, Color::Reset),
            rgb(133, 95, 215, Color::Reset),
            rgb(216, 0, 176, Color::Reset),
        ],
        dim: Some(rgb(118, 118, 118, Color::Reset)),
        ground: None,
        bold: false,
    },
    Theme {
        name: "dark",
        about: "soft colours on a dark ground",
        inks: [
            rgb(122, 162, 247, Color::LightBlue),
            rgb(158, 206, 106, Color::LightGreen),
            rgb(224, 175, 104, Color::LightYellow),
            rgb(247, 118, 142, Color::LightRed),
            rgb(115, 218, 202, Color::LightCyan),
            rgb(187, 154, 247, Color::LightMagenta),
            rgb(255, 158, 100, Color::LightYellow),
        ],
        dim: Some(rgb(150, 158, 188, Color::Gray)),
        ground: Some(rgb(38, 44, 68, Color::DarkGray)),
        bold: false,
    },
    Theme {
        name: "light",
        about: "dark inks on a light ground",
        inks: [
            rgb(0, 80, 160, Color::Blue),
            rgb(0, 110, 40, Color::Reset),
            rgb(140, 78, 0, Color::Red),
            rgb(180, 0, 30, Color::Red),
            rgb(0, 105, 105, Color::Reset),
            rgb(110, 40, 150, Color::Magenta),
            rgb(150, 0, 120, Color::Magenta),
        ],
        dim: Some(rgb(90, 90, 90, Color::Reset)),
        ground: Some(rgb(215, 228, 245, Color::Gray)),
        bold: false,
    },
    Theme {
        name: "high-contrast",
        about: "bright and bold, for dark ground",
        inks: [
            own(Color::LightCyan),
            own(Color::LightGreen),
            own(Color::LightYellow),
            own(Color::LightRed),
            own(Color::LightGreen),
            own(Color::LightBlue),
            own(Color::LightMagenta),
        ],
        dim: Some(own(Color::Reset)),
        ground: None,
        bold: true,
    },
    Theme {
        name: "colour-blind",
        about: "blue, orange and grey only, on any ground",
        inks: [
            rgb(0, 122, 190, Color::Reset),
            rgb(0, 122, 190, Color::Reset),
            rgb(118, 118, 118, Color::Reset),
            rgb(194, 86, 0, Color::Red),
            rgb(0, 122, 190, Color::Reset),
            rgb(194, 86, 0, Color::Reset),
            rgb(118, 118, 118, Color::Reset),
        ],
        dim: Some(rgb(118, 118, 118, Color::Reset)),
        ground: None,
        bold: false,
    },
    Theme {
        name: "mono",
        about: "no colour, bold and dim only",
        inks: [own(Color::Reset); 7],
        dim: None,
        ground: None,
        bold: false,
    },
];

/// Number of the theme of that name.
pub fn by_name(name: &str) -> Option<usize> {
    THEMES.iter().position(|t| t.name == name)
}

/// A theme on a terminal.
#[derive(Clone, Copy, Debug)]
pub struct Paint {
    /// The theme.
    pub theme: &'static Theme,
    /// The terminal's colours.
    pub depth: Depth,
}

impl Paint {
    /// Style of a tone. No meaning rests on colour alone: in every theme bad is bold, and unknown is dim.
    pub fn style(&self, tone: Tone) -> Style {
        let t = self.theme;
        let plain = Style::new();
        let style = match tone {
            Tone::Normal => plain,
            Tone::Dim => match t.dim.map(|ink| self.color(ink)) {
                Some(color) if color != Color::Reset => plain.fg(color),
                _ => plain.add_modifier(Modifier::DIM),
            },
            Tone::Strong => plain.add_modifier(Modifier::BOLD),
            Tone::Title => self.fg(t.inks[0]),
            Tone::Good => self.fg(t.inks[1]),
            Tone::Warn => self.fg(t.inks[2]).add_modifier(Modifier::BOLD),
            Tone::Bad => self.fg(t.inks[3]).add_modifier(Modifier::BOLD),
            Tone::Tx => self.fg(t.inks[4]),
            Tone::Rx => self.fg(t.inks[5]),
            Tone::Accent => self.fg(t.inks[6]).add_modifier(Modifier::BOLD),
        };
        // Without colours, bold alone tells bad from plain, so nothing else may be bold.
        if t.bold && tone != Tone::Dim && self.depth != Depth::Mono {
            style.add_modifier(Modifier::BOLD)
        } else {
            style
        }
    }

    /// Style of the selected row, over the tones of its cells.
    pub fn selected(&self) -> Style {
        match self.theme.ground {
            Some(ink) if matches!(self.depth, Depth::Ansi256 | Depth::True) => {
                Style::new().bg(self.color(ink)).add_modifier(Modifier::BOLD)
            }
            _ => Style::new().add_modifier(Modifier::REVERSED),
        }
    }

    fn fg(&self, ink: Ink) -> Style {
        match self.color(ink) {
            Color::Reset => Style::new(),
            color => Style::new().fg(color),
        }
    }

    fn color(&self, ink: Ink) -> Color {
        match (self.depth, ink) {
            (Depth::Mono, _) => Color::Reset,
            (Depth::True, (Some((r, g, b)), _)) => Color::Rgb(r, g, b),
            (Depth::Ansi256, (Some(rgb), _)) => Color::Indexed(cube(rgb)),
            (_, (_, near)) => near,
        }
    }
}

/// Nearest colour of xterm's 256: greys of the ramp (8, 18, ... 238), else of the 6x6x6 cube (levels 0, 95,
/// 135, ... 255).
fn cube((r, g, b): (u8, u8, u8)) -> u8 {
    if r == g && g == b && (8..=238).contains(&r) {
        return 232 + (r - 8) / 10;
    }
    let level = |v: u8| match v {
        0..48 => 0,
        48..115 => 1,
        _ => (v - 35) / 40,
    };
    16 + 36 * level(r) + 6 * level(g) + level(b)
}

/// The tone of a stuck QP.
pub fn stuck_tone(stuck: Stuck) -> Tone {
    if stuck.is_wrong() { Tone::Bad } else { Tone::Warn }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TONES: [Tone; 10] = [
        Tone::Normal,
        Tone::Dim,
        Tone::Strong,
        Tone::Title,
        Tone::Good,
        Tone::Warn,
        Tone::Bad,
        Tone::Tx,
        Tone::Rx,
        Tone::Accent,
    ];

    #[test]
    fn without_colour_no_theme_sets_one() {
        for theme in THEMES {
            let paint = Paint {
                theme,
                depth: Depth::Mono,
            };
            for style in TONES
                .map(|t| paint.style(t))
                .into_iter()
                .chain([paint.selected()])
            {
                assert_eq!((style.fg, style.bg), (None, None), "{}", theme.name);
            }
        }
    }

    #[test]
    fn what_is_bad_differs_from_what_is_plain_even_without_colour() {
        for theme in THEMES {
            let paint = Paint {
                theme,
                depth: Depth::Mono,
            };
            assert_ne!(paint.style(Tone::Bad), paint.style(Tone::Normal));
            assert!(paint.style(Tone::Bad).add_modifier.contains(Modifier::BOLD));
        }
    }

    #[test]
    fn sixteen_colour_terminals_get_no_rgb_and_no_index() {
        for theme in THEMES {
            let paint = Paint {
                theme,
                depth: Depth::Ansi16,
            };
            for style in TONES.map(|t| paint.style(t)) {
                assert!(
                    !matches!(style.fg, Some(Color::Rgb(..) | Color::Indexed(_))),
                    "{}",
                    theme.name
                );
            }
        }
    }

    /// Relative luminance and contrast ratio as WCAG 2 defines them.
    fn contrast(a: (u8, u8, u8), b: (u8, u8, u8)) -> f64 {
        let luminance = |(r, g, b): (u8, u8, u8)| {
            let linear = |v: u8| {
                let v = f64::from(v) / 255.0;
                if v <= 0.04045 {
                    v / 12.92
                } else {
                    ((v + 0.055) / 1.055).powf(2.4)
                }
            };
            0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
        };
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    /// What a terminal draws for a colour of ours.
    fn seen(color: Color) -> Option<(u8, u8, u8)> {
        match color {
            Color::Rgb(r, g, b) => Some((r, g, b)),
            Color::Indexed(at @ 232..) => {
                let v = 8 + (at - 232) * 10;
                Some((v, v, v))
            }
            Color::Indexed(at) => {
                let level = |step: u8| if step == 0 { 0 } else { 55 + 40 * step };
                let at = at.checked_sub(16)?;
                Some((level(at / 36), level(at / 6 % 6), level(at % 6)))
            }
            _ => None,
        }
    }

    /// The backgrounds for which a theme is made.
    fn grounds(name: &str) -> &'static [(u8, u8, u8)] {
        const BLACK: (u8, u8, u8) = (0, 0, 0);
        const WHITE: (u8, u8, u8) = (255, 255, 255);
        match name {
            "default" | "colour-blind" => &[BLACK, WHITE],
            "dark" => &[BLACK, (40, 44, 52)],
            "light" => &[WHITE, (253, 246, 227)],
            // This theme uses the terminal's own colours.
            _ => &[],
        }
    }

    #[test]
    fn every_ink_has_the_contrast_that_text_needs_on_the_grounds_of_its_theme() {
        // 4.5 is the limit of WCAG's level AA. Few of the 256 fixed colours reach it with both black and
        // white, so 3.8 is enough there.
        for (depth, least) in [(Depth::True, 4.5), (Depth::Ansi256, 3.8)] {
            for theme in THEMES {
                let paint = Paint { theme, depth };
                let mut grounds = grounds(theme.name).to_vec();
                grounds.extend(paint.selected().bg.and_then(seen));
                for tone in TONES {
                    let Some(ink) = paint.style(tone).fg.and_then(seen) else {
                        continue;
                    };
                    for ground in &grounds {
                        let ratio = contrast(ink, *ground);
                        assert!(
                            ratio >= least,
                            "{} {depth:?} {tone:?} {ink:?} on {ground:?}: {ratio:.2}",
                            theme.name
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn no_ink_of_the_sixteen_colours_vanishes_on_black_or_white() {
        let paint = Paint {
            theme: &THEMES[0],
            depth: Depth::Ansi16,
        };
        for tone in TONES {
            assert!(
                matches!(paint.style(tone).fg, None | Some(Color::Red | Color::Magenta)),
                "{tone:?}"
            );
        }
    }

    #[test]
    fn names_are_unique_and_found() {
        for (at, theme) in THEMES.iter().enumerate() {
            assert_eq!(by_name(theme.name), Some(at));
        }
        assert_eq!(by_name("no such theme"), None);
    }

    #[test]
    fn rgb_maps_into_the_cube() {
        assert_eq!(cube((0, 0, 0)), 16);
        assert_eq!(cube((255, 255, 255)), 231);
        assert_eq!(cube((255, 0, 0)), 196);
    }

    #[test]
    fn the_environment_decides_the_depth() {
        let with = |vars: &'static [(&str, &str)]| {
            Depth::detect(|n| vars.iter().find(|(k, _)| *k == n).map(|(_, v)| (*v).to_owned()))
        };
        assert_eq!(with(&[("TERM", "xterm")]), Depth::Ansi16);
        assert_eq!(with(&[("TERM", "xterm-256color")]), Depth::Ansi256);
        assert_eq!(
            with(&[("TERM", "xterm"), ("COLORTERM", "truecolor")]),
            Depth::True
        );
        assert_eq!(
            with(&[("TERM", "xterm"), ("COLORTERM", "truecolor"), ("NO_COLOR", "1")]),
            Depth::Mono
        );
        assert_eq!(with(&[("TERM", "xterm"), ("NO_COLOR", "")]), Depth::Ansi16);
        assert_eq!(with(&[("TERM", "dumb")]), Depth::Mono);
    }
}
