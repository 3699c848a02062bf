//! Counters of a damaged Ethernet link, as drivers name them in `ethtool -S`. The counters of InfiniBand
//! (`symbol_error`, `link_downed`) stay at 0 on Ethernet.
//!
//! Names are those of Linux 6.12: mlx5 (`en_stats.c`), bnxt_en (`bnxt_ethtool.c`), ice and i40e
//! (`*_ethtool.c`), hns3 (`hclge_main.c`), ionic (`ionic_stats.c`). What FEC has repaired
//! (`rx_corrected_bits_phy`, `rx_fec_corrected_blocks`), and what is counted before it repairs
//! (`rx_err_lane_N_phy`), is left out: healthy links of PAM4 count that all the time, and lose no packet.

/// Packets that were dropped because they arrived damaged, or errors that damaged them.
#[rustfmt::skip] // names, as many as a line has room for
const DAMAGE: [&str; 10] = [
    "rx_crc_errors_phy", "rx_symbol_err_phy", "rx_pcs_symbol_err_phy", "rx_fcs_err_frames",
    "rx_pcs_symbol_err", "rx_fec_uncorrectable_blocks", "rx_crc_errors.nic", "port.rx_crc_errors",
    "mac_rx_fcs_err_pkt_num", "frames_rx_bad_fcs",
];

/// How often the link went down (mlx5, bnxt_en).
const DOWNS: [&str; 2] = ["link_down_events_phy", "link_down_events"];

/// Whether a counter rises when packets arrive damaged.
pub fn is_damage(name: &str) -> bool {
    DAMAGE.contains(&name)
}

/// Whether a counter rises when the link goes down.
pub fn is_down(name: &str) -> bool {
    DOWNS.contains(&name)
}
