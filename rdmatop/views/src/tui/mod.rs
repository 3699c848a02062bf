//! The live view.
//!
//! ```text
//! rdmatop  host  kernel  up      eBPF on  probes 21 ok  lost 0     header: render/header.rs
//! 2 devices  Tx 24.1G  Rx 23.9G  WR 1.2M/s  QPs 128 RTS 2 ERR
//! ! note: why. remedy                                              banner
//!  1:Processes  2:QPs  3:Devices  4:Verbs  5:Trace  6:Probes       tabs
//!     PID COMMAND   DEVICE   QPS  TX WR/s  TX b/s  RX b/s   ERR    columns/*.rs, render/table.rs
//!    4242 ib_send…  mlx5_0     8    1.20M   98.1G   12.0M     0
//! -- ib_send_bw (4242) ---------------------------------------     detail/*.rs
//! ?:Help  Enter:Detail  Tab:Next  f:Filter  s:Sort  q:Quit         keys.rs
//! ```
//!
//! Terminal events become actions (`keys`), actions change the state (`update`), the state is drawn
//! (`render`), what changed of it is sent (`painter`). Only `terminal`, `run`, `keep` and `settings` touch
//! the world.

pub mod columns;
pub mod detail;
pub mod filter;
pub mod format;
pub mod glyphs;
mod keep;
pub mod keys;
pub mod layout;
pub mod painter;
pub mod render;
pub mod run;
pub mod settings;
pub mod state;
pub mod tab;
pub mod table;
pub mod terminal;
mod text;
pub mod theme;
pub mod trace_log;
mod tree;
pub mod update;

#[cfg(test)]
mod tests;

pub use run::{Control, TuiError, TuiOptions, run};
pub use tab::Tab;
