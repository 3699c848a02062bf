//! Decides where each kernel test runs: on which kernels, and in which kind of guest.

use crate::{
    arch::Arch,
    lab::{kernel::Series, modules, nic},
};

/// The kernel on which each test runs by default: the one with the most installations.
pub(super) const EVERYTHING: &str = "6.12";

/// The tests that also run on other kernels by default, by prefixes of their names, of which the longest
/// decides. They test what depends on the kernel: hooks and offsets, the equality of each data path, ways to
/// attach, and known differences. `--everywhere` runs each test on every kernel.
pub(super) const ALSO_ON: &[(&str, &[&str])] = &[
    // The hooks of the control plane and the offsets that they read: the life of each object once.
    ("lifecycle::", &["5.10", "6.1", "7.2"]),
    ("lifecycle::each_family_of_events_can_be_traced_alone", &[]),
    ("lifecycle::every_event_has_the_keys_of_the_schema", &[]),
    ("lifecycle::filters_keep_what_they_name", &[]),
    ("lifecycle::a_storm_is_printed_or_counted", &[]),
    ("lifecycle::the_summary_counts_what_was_printed", &[]),
    (
        "verbs::every_call_of_every_verb_is_counted_once",
        &["5.10", "6.1", "7.2"],
    ),
    (
        "robust::probes_names_every_program_with_a_verdict",
        &["5.10", "6.1", "7.2"],
    ),
    ("robust::no_program_is_refused", &["5.10", "6.1", "7.2"]),
    // The equality of each data path: each kind of request, and the fate of requests in QPs that fail. The
    // other workloads of these modules vary programs and faults: they run on 6.12, and on the other kernels
    // only with --everywhere.
    ("exact::every_kind_of_request", &["6.1", "7.2"]),
    ("exact::loss_on_the_wire", &["6.1", "7.2"]),
    ("queues::what_is_flushed", &["6.1", "7.2"]),
    ("wr_events::every_kind_of_request", &["6.1", "7.2"]),
    // By kprobe, receives that a modify to ERR flushed were missing on 6.1 alone.
    ("wr_events::each_end_of_a_broken_qp", &["6.1", "7.2"]),
    // A kernel decides how it hits probes on programs and whether it takes ours. The same programs at the
    // same functions make counts and events, and robust::no_program_is_refused loads them on each kernel: so
    // counts are compared on the newest kernel.
    ("uprobes::probes_on_programs_count", &["7.2"]),
    // Ways to attach. 5.10 has no module BTF, and its test says so. Debian's 7.2 preempts programs, so the
    // control plane keeps kprobes there, as the verdicts say.
    ("fentry::the_verdicts_say", &["7.2"]),
    ("fentry::where_modules_have_no_btf", &["5.10"]),
    // The kernel decides what becomes of programs when rdmatop is killed or a module is removed.
    ("robust::sigkill_leaves_nothing_attached", &["5.10", "7.2"]),
    ("robust::the_module_can_be_reloaded", &["5.10", "7.2"]),
    ("robust::the_device_can_be_removed", &["7.2"]),
    // Before 5.11 maps are charged to the limit of locked memory instead of the cgroup.
    ("faults_host::a_memory_cgroup", &["5.10"]),
    ("faults_host::maps_that_find_no_locked_memory", &["5.10"]),
    // The kernel counts the programs that it skips; 7.2 also preempts programs.
    ("skips::every_program_that_the_kernel_skipped", &["7.2"]),
    // The oldest kernel has no counts of work requests, and the screen says why.
    ("live::the_screen_shows_what_perftest_did", &["5.10"]),
    // SoftRoCE counts bytes since 7.2; on older kernels the test says so. That a kernel's own consumers have
    // their port's bytes is tested with --everywhere: their QPs are read as those of programs are.
    ("by_ports::", &["7.2"]),
    ("port_shares::", &["7.2"]),
    // Which contexts are listed, and by which hook each call is seen.
    ("testnic::shares::", &["6.1"]),
    // What a program reads of the caller's memory.
    ("testnic::devx::", &["6.1"]),
];

/// Whether the default run needs these modules, which Debian does not have, on a kernel: to build them takes
/// half a minute of CPU time. Debian's kernels have no siw, so one kernel is enough for it.
pub(super) fn builds_by_default(modules: &str, kernel: &str) -> bool {
    let tests = if modules == "siw" { "siw::" } else { "testnic" };
    let mut also = ALSO_ON.iter().filter(|(test, _)| test.starts_with(tests));
    kernel == EVERYTHING || also.any(|(_, kernels)| kernels.contains(&kernel))
}

/// The tests that `--arch aarch64` runs where no FILTER names others, by prefixes of their names. They test
/// what depends on the architecture: registers read by programs, layouts of structures, atomic instructions,
/// how functions are probed, and what is compiled into applications.
pub(super) const ON_AARCH64: &[&str] = &[
    "robust::probes_names_every_program_with_a_verdict",
    "lifecycle::a_plain_pair",
    "verbs::every_call_of_every_verb_is_counted_once",
    "exact::every_kind_of_request",
    "uprobes::probes_on_programs_count",
    "wr_events::every_kind_of_request",
    "live::the_screen_shows_what_perftest_did",
];

/// The tests that the default run has for aarch64, by their whole names. They are in an executable of their
/// own (tests/examples/short.rs), without traffic programs: to compile the kernel tests and these programs
/// takes ten times as long. Each is one start of rdmatop beside perftest.
pub(super) const FEW_ON_AARCH64: &[&str] = &[
    // Every program of the data path, the offsets and registers that they read, and their atomic additions.
    "exact::every_kind_of_request_is_counted_exactly",
    // The same of the control plane, and records through the ring buffer.
    "lifecycle::a_plain_pair_gives_each_qp_its_whole_life_once",
];

/// Tests that only `--everywhere` runs, because they wait or work for long and other tests prove most of the
/// same.
pub(super) const ONLY_EVERYWHERE: &[&str] = &[
    // It compares rates with another session's of its own window, which on a busy machine is another time.
    // port_shares compares totals of the same users with what their programs were told to move.
    "by_ports::senders_that_share_a_port_have_shares_by_psn",
    // Debian's kernels have no siw. queues::completions_that_find_the_cq_full_are_counted_apart shows the
    // same of SoftRoCE, and wr_uprobes::known_requests_appear of programs that are probed.
    "siw::a_completion_without_room_is_an_overflow_and_no_completion",
    "siw::each_request_of_rping_is_an_event_by_probes",
    // uprobes::a_file_that_a_program_has_under_another_name shows that a program's own file is found and
    // counted; uprobes_loads has libraries that come later.
    "uprobes::programs_with_a_library_of_their_own_are_counted",
    "uprobes::posts_of_a_statically_linked_program_are_counted",
    // attach::work_requests_are_counted_before_and_after_the_driver_was_reloaded attaches anew, too.
    "attach::counts_go_on_when_programs_are_attached_anew",
    // findings::healthy_traffic_has_no_findings shows the same of perftest's traffic.
    "lab_scenarios::a_ping_pong_crosses_the_wire_and_has_no_finding",
    // judgement::qps_that_nobody_connects_are_stuck_in_the_text_and_in_the_json has the same queue pairs, and
    // the rule is tested in simulated time.
    "findings::qps_that_nobody_connects_are_found_by_state_alone",
    // Two and a half minutes of traffic. The rule is tested in simulated time (model/findings/tests);
    // latencies of work requests are compared with the program's own clock by
    // exact::latencies_agree_with_the_program_s_own_clock.
    "findings::work_requests_on_a_path_that_becomes_slow_are_named",
    // lab_scenarios waits for the same findings, alone and about the same end, with rnr, dead-peer and rails.
    "findings::a_receiver_that_is_stopped_is_named_and_not_its_sender",
    "findings::a_peer_that_was_killed_is_missed_by_its_sender",
    "findings::one_device_of_four_that_carries_all_is_hot",
    // The rules are tested in simulated time, and the sysfs files of a bond on a fake tree.
    "findings::a_bond_of_which_one_link_has_all_and_one_that_lost_a_link",
    // The rules are tested in simulated time. One test waits for more than a minute; in the others four
    // programs post at once.
    "findings::a_process_with_one_qp_beside_one_with_sixteen_is_named",
    "findings::a_process_that_only_registers_memory_is_named",
    "findings::two_of_four_devices_that_carry_a_job_leave_the_others_idle",
    // The rule is tested in simulated time; a provider's refusal is counted by
    // uprobes::of_a_list_that_the_provider_rejects_midway_the_accepted_part_counts.
    "findings::a_program_that_posts_to_a_queue_without_room_is_named",
    // port_shares::what_is_shown_of_users_of_one_port_is_true has the situations that say most.
    "port_shares::what_is_shown_of_users_of_one_port_is_true_in_more_situations",
    // findings::a_port_that_goes_down_under_qps_and_a_removal_that_waits and
    // lab_command::while_a_removal_hangs_its_holder_is_named also show that an object's holder is named while
    // its removal waits.
    "presence::a_removal_that_waits_names_who_holds_the_device_and_its_counts_go_on",
    // Each test that uses these programs compares their work with their own accounts; these tests are about
    // the accounts alone.
    "traffic::a_client_whose_server_is_killed_ends_with_a_retry_error",
    "traffic::a_reloaded_module_gives_the_devices_back",
    "traffic::a_running_pair_owns_the_qps_it_names",
    "traffic::a_stopped_receiver_makes_the_sender_wait_and_nothing_is_lost",
    "traffic::hold_fd_makes_a_qp_without_an_owner",
    "traffic::idle_qps_ends_with_its_children_when_it_is_killed",
    "traffic::idle_qps_holds_as_many_qps_as_asked_in_the_state_asked",
    "traffic::perftest_pairs_give_their_account",
    "traffic::qp_churn_says_what_it_did",
    "traffic::sqd_gets_its_event",
    "traffic::the_wire_carries_traffic_and_loses_packets_when_told_to",
    "traffic::timed_posts_times_every_request",
    "traffic::verb_errors_gets_the_errnos_it_provokes",
    // Third-party programs on the same SoftRoCE that exact compares exactly; examples::rping still runs.
    "examples::libfabric_s_endpoints_are_rc_and_ud_and_counted_as_its_example_says",
    "examples::open_mpi_sends_what_an_all_reduce_has_to_over_ucx_and_over_libfabric",
    "examples::ucx_puts_and_tagged_messages_are_what_its_example_says",
    // The page is written from the printed output (`cargo xtask learn`), which has tests of its own.
    "learn::the_commands_of_the_page_print_what_it_shows",
    // faults_terminal::ftrace_on_the_same_functions_counts_beside_us shows the same with the kernel's own
    // tracer, and `cargo xtask bench` runs bpftrace beside rdmatop.
    "faults_terminal::bpftrace_on_the_same_functions_counts_beside_us",
    // faults_terminal::a_sample_into_a_full_pipe and a_pipe_that_nobody_reads show that an output that nobody
    // reads keeps no programs in the kernel; rdmatop/tests/terminal.rs covers the terminal itself.
    "faults_terminal::a_terminal_that_does_not_read_keeps_nothing_attached",
    // robust::two_traces_at_once_see_the_same, exact::a_trace_beside_a_window_changes_no_count and
    // uprobes::probes_on_programs_count show that one rdmatop changes nothing that another sees.
    "faults_terminal::five_at_once_count_the_same_and_end_clean",
    // faults_many::the_same_qp_numbers_on_two_devices_at_once compares the same counts while the queue pairs
    // of both devices live.
    "identity::counts_stay_with_their_process_where_two_devices_use_the_same_numbers",
    // faults_terminal::a_step_of_the_clock_changes_no_rate and a_stop_of_twenty_seconds check the same counts
    // and rates of a window.
    "figures::a_step_of_the_clock_and_a_stop_of_rdmatop_change_no_rate",
    // rdmatop/tests/memory.rs checks that the engine's memory stays flat through 40,000 QPs that come and go.
    // faults_many::churn_that_overruns_the_ring_buffer_is_told_and_repaired_by_netlink checks the table after
    // churn.
    "flood::refreshes_under_churn_leave_memory_flat_and_the_table_as_netlink_s",
    // Unit tests of the tracer cover filters and families; lifecycle::filters_keep_what_they_name shows that
    // they reach it.
    "lifecycle::each_family_of_events_can_be_traced_alone",
    // flood::a_ring_of_8_kib adds up what is printed and what is lost in the same way, of more events, and
    // some are lost.
    "lifecycle::a_storm_is_printed_or_counted_as_lost_to_the_last_event",
    // Unit tests cover the mouse (views/tui).
    "live::the_mouse_chooses_a_tab_a_row_and_an_order_and_what_was_chosen_is_kept",
    // The same programs cause the same troubles for findings::what_a_process_does_wrong_is_named and
    // findings::a_job_on_tcp_is_named_and_what_it_moves_is_counted_to_the_byte. `reorder` has the finding of
    // `loss`; the rule of `funnel` is tested in simulated time.
    "lab_scenarios::scenarios_of_troubles_that_other_tests_make_show_their_findings",
    // flood::a_ring_of_8_kib and faults_many::churn_that_overruns_the_ring_buffer count the same;
    // findings::what_a_process_does_wrong_is_named also finds qp-churn.
    "lab_scenarios::a_storm_of_qps_is_counted_to_the_last_and_found_as_churn",
    // lab_command::lab_up_killed_at_ten_moments shows the same of the code that both use.
    "lab_scenarios::killed::a_scenario_killed_at_ten_moments_leaves_what_down_or_the_next_removes",
    // flood::many_processes_of_one_user shows the same of the other ring buffer, by the same code (share.rs);
    // wr_events::while_its_reader_stands_still shows that this ring has such shares.
    "wr_events::many_posters_of_one_user_lose_their_own_records_alone",
    // wr_events::filters_and_sampling and wr_events::a_tiny_ring show the same for the other source of these
    // events; the other tests of wr_uprobes cover events from probes.
    "wr_uprobes::filters_sampling_and_a_tiny_ring_add_up",
    "wr_uprobes::completions_of_an_extended_cq_are_probed_only_on_request",
    // uprobes::a_limit_that_is_passed shows what is reported when there is no room for probes.
    "uprobes::probes_that_nobody_can_hit_make_room_for_others",
    // fentry::a_storm and flood::a_ring_of_8_kib count events of the same ring in the same way.
    "fentry::a_storm_under_fentry_is_printed_or_counted_as_lost_to_the_last_event",
];

/// Modules of tests that share a guest of their own.
pub(super) struct Group {
    /// Its name in the log.
    pub(super) name: &'static str,
    /// The modules in the order in which they run; empty: all modules that are in no other group.
    pub(super) modules: &'static [&'static str],
    /// Options of `lab run`, without the number of CPUs.
    options: &'static [&'static str],
    /// Whether the tests need two CPUs at once on a kernel, as the equality of data paths does on each. With
    /// one CPU a start of rdmatop costs the translator a quarter less, and programs that poll while they wait
    /// keep one CPU busy instead of two.
    two_cpus: fn(Series) -> bool,
    /// Whether a kernel supports such a guest.
    pub(super) has: fn(Series) -> bool,
    /// About how long a test takes. The longest guest begins first, and the short ones fill the remaining
    /// time.
    pub(super) seconds: usize,
    /// Whether its tests mostly wait, for counters to be read again and for states to last. Such guests have
    /// a worker of their own beside those that keep the CPUs busy.
    pub(super) waits: bool,
}

impl Group {
    /// Returns the options of `lab run` for a guest of this group.
    pub(super) fn options(&self, series: Series) -> Vec<&'static str> {
        let cpus = if (self.two_cpus)(series) { "2" } else { "1" };
        [self.options, &["--cpus", cpus]].concat()
    }

    /// Whether its guests have another NIC than SoftRoCE.
    pub(super) fn has_nic(&self) -> bool {
        self.options.contains(&"--nic")
    }
}

pub(super) const GROUPS: [Group; 8] = [
    Group {
        name: "rxe",
        modules: &[],
        options: &[],
        two_cpus: |_| true,
        has: |_| true,
        seconds: 9,
        waits: false,
    },
    // The control plane, programs that come and go, and data paths whose programs cannot interrupt each
    // other.
    Group {
        name: "control",
        modules: &[
            "consumer",
            "faults_many",
            "lifecycle",
            "live",
            "robust",
            "siw",
            "verbs",
        ],
        options: &[],
        // One CPU, but only on 6.12: see `group_of`. Debian's 5.10 is not preemptible, and its kretprobes
        // have one instance per possible CPU: on one CPU a waiting call takes the returns of all others
        // (register_kretprobe). On 6.1 the softirq that reports an event interrupts our programs, most often
        // on an only CPU, and the kernel skips its program. 7.2 preempts programs and skips those that
        // another task enters on that CPU meanwhile.
        two_cpus: |_| false,
        has: |_| true,
        seconds: 4,
        waits: false,
    },
    Group {
        name: "once",
        modules: &[
            "traffic",
            "flood",
            "faults_terminal",
            "faults_owners",
            "lab_command",
            "examples",
            "doctor",
            "hw_counters",
            "figures",
            "identity",
            "judgement",
            "partial",
            "privileges",
            "remedies",
        ],
        options: &[],
        two_cpus: |_| false,
        has: |_| true,
        seconds: 7,
        waits: false,
    },
    // Programs are attached and detached under traffic: one CPU, for the reason given at `alone`.
    Group {
        name: "find",
        modules: &["findings", "nccl_log", "learn"],
        options: &[],
        two_cpus: |_| false,
        has: |_| true,
        seconds: 22,
        waits: false,
    },
    // These tests change switches of the whole kernel, or attach and detach programs under traffic: other
    // tests would meet what a switch leaves behind. One CPU, because kprobes patch code that all of them use,
    // and QEMU's translator may go on with the old code on another CPU: then no kprobe runs there any more,
    // or the guest dies. The last test locks the kernel down, which cannot be undone.
    Group {
        name: "alone",
        modules: &[
            "degrade",
            "faults_host",
            "presence",
            "attach",
            "skips",
            "uprobes",
            "uprobes_loads",
            "wr_uprobes",
            // The last one, because it locks the kernel down for good.
            "lockdown",
        ],
        options: &[],
        two_cpus: |_| false,
        has: |_| true,
        seconds: 8,
        waits: false,
    },
    // `rdmatop lab run` sets up and takes down what other tests would see.
    Group {
        name: "lab",
        modules: &["lab_scenarios"],
        options: &[],
        two_cpus: |_| false,
        has: |series| series.name != "5.10",
        seconds: 20,
        waits: true,
    },
    // Guests without SoftRoCE.
    Group {
        name: "testnic",
        modules: &["testnic", "testnic_findings", "testnic_gpu"],
        options: &["--devices", "0"],
        two_cpus: |_| true,
        has: modules::has_test_drivers,
        seconds: 18,
        waits: true,
    },
    // A NIC whose data path bypasses the kernel. One CPU, as above: a probe on a process switches a static
    // branch of the scheduler (perf_sched_events), from which the guest died.
    Group {
        name: "bypass",
        modules: &["bypass", "bypass_uprobes"],
        options: &["--nic", "pvrdma"],
        two_cpus: |_| false,
        has: nic::is_for,
        seconds: 10,
        waits: false,
    },
];

/// Returns the group in whose guest a module runs. On other kernels the control plane needs two CPUs, like
/// the first group, and has few tests, so it has no guest of its own there, which would take ten seconds of
/// CPU time to boot. It has none on aarch64 either, whose kernels do not preempt programs and let no
/// interrupt in while a program runs that a kprobe entered: there it shares the one CPU of `alone`.
pub(super) fn group_of(module: &str, series: Series) -> &'static Group {
    let own = GROUPS.iter().find(|group| group.modules.contains(&module));
    match own {
        Some(group) if group.name != "control" => group,
        Some(_) if series.arch == Arch::Aarch64 => group("alone"),
        Some(group) if series.name == EVERYTHING => group,
        _ => &GROUPS[0],
    }
}

/// Returns the group of this name, or the first one where no group has it.
pub(super) fn group(name: &str) -> &'static Group {
    let found = GROUPS.iter().find(|group| group.name == name);
    found.unwrap_or(&GROUPS[0])
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{lab::kernel, paths};

    /// Returns the modules: the files below tests/tests without their extensions.
    fn files() -> Vec<String> {
        let entries = fs::read_dir(paths::repo().join("tests/tests")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names
            .filter(|name| name != "main.rs")
            .map(|name| name.trim_end_matches(".rs").to_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn each_file_of_kernel_tests_is_a_module_of_the_executable() {
        let main = fs::read_to_string(paths::repo().join("tests/tests/main.rs")).unwrap();
        let mut modules: Vec<&str> = main
            .lines()
            .filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'))
            .collect();
        modules.sort_unstable();
        assert_eq!(modules, files());
    }

    #[test]
    fn what_the_default_run_tests_on_a_kernel_has_its_modules_there() {
        for (test, kernels) in ALSO_ON {
            let modules = [("siw", "siw::"), ("test drivers", "testnic")];
            for (modules, _) in modules.iter().filter(|(_, tests)| test.starts_with(tests)) {
                for kernel in *kernels {
                    assert!(builds_by_default(modules, kernel), "{test} on {kernel}");
                }
            }
        }
        assert!(builds_by_default("siw", EVERYTHING) && builds_by_default("test drivers", EVERYTHING));
        assert!(!builds_by_default("siw", "7.2") && !builds_by_default("test drivers", "7.2"));
    }

    #[test]
    fn the_tables_name_modules_tests_and_kernels_with_a_guest_that_exist() {
        let files = files();
        for module in GROUPS.iter().flat_map(|group| group.modules) {
            assert!(files.iter().any(|file| file == module), "{module}");
        }
        let exists = |beginning: &str| {
            let (module, test) = beginning.rsplit_once("::").unwrap();
            let place = paths::repo().join("tests/tests").join(module.replace("::", "/"));
            let text = fs::read_to_string(place.with_extension("rs"))
                .or_else(|_| fs::read_to_string(place.join("mod.rs")))
                .unwrap();
            assert!(text.contains(&format!("fn {test}")), "{beginning}");
        };
        for test in ONLY_EVERYWHERE.iter().chain(ON_AARCH64) {
            exists(test);
        }
        let short = fs::read_to_string(paths::repo().join("tests/examples/short.rs")).unwrap();
        for test in FEW_ON_AARCH64 {
            exists(&format!("{test}()"));
            let (module, _) = test.split_once("::").unwrap();
            assert!(short.contains(&format!("\nmod {module};")), "{test}");
        }
        for (beginning, kernels) in ALSO_ON {
            exists(beginning);
            let (module, _) = beginning.split_once("::").unwrap();
            for kernel in *kernels {
                let series = kernel::find(kernel).unwrap();
                assert!((group_of(module, series).has)(series), "{beginning} on {kernel}");
                assert_ne!(series.name, EVERYTHING, "{beginning}");
            }
        }
    }
}
