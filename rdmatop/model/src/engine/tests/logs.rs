//! Errors that drivers log.

use super::*;
use crate::cause::{Cause, CauseId, Concerns};
use crate::input::LoggedError;

fn nic(index: u32, name: &str, driver: &str) -> DeviceReading {
    DeviceReading {
        driver: Some(driver.into()),
        pci: Some(format!("0000:3b:00.{index}")),
        ..rxe(index, name)
    }
}

fn unreadable() -> Input {
    Input::Logged(Err(Box::new(Cause {
        id: CauseId::NoKernelLog,
        concerns: Concerns::Host,
        what: "a".into(),
        why: "b".into(),
        remedy: "c".into(),
    })))
}

fn notes(host: &mut Host) -> Vec<CauseId> {
    host.tick().health.notes.iter().map(|note| note.id).collect()
}

#[test]
fn an_unreadable_log_is_a_note_where_a_nic_writes_errors_to_it() {
    // The parent of SoftRoCE's device is the NIC below it.
    for devices in [vec![rxe(0, "rxe0")], vec![nic(0, "rxe0", "rdma_rxe")], vec![]] {
        let mut host = Host::new();
        host.devices(devices);
        host.apply(unreadable());
        assert_eq!(notes(&mut host), []);
    }
    let mut host = Host::new();
    host.devices(vec![rxe(0, "rxe0"), nic(1, "mlx5_0", "mlx5_core")]);
    assert_eq!(notes(&mut host), [], "nobody has looked");
    host.apply(unreadable());
    assert_eq!(notes(&mut host), [CauseId::NoKernelLog]);
    assert_eq!(host.tick().devices[1].driver_errors, None);
    host.apply(Input::Logged(Ok(Vec::new())));
    assert_eq!(notes(&mut host), []);
}

#[test]
fn an_error_counts_for_the_device_that_it_names_alone() {
    let mut host = Host::new();
    host.devices(vec![nic(0, "mlx5_0", "mlx5_core"), nic(1, "mlx5_1", "mlx5_core")]);
    let error = LoggedError {
        text: "mlx5_core 0000:3b:00.1: cmd failed".into(),
        device: None,
        critical: false,
        ours: false,
    };
    host.apply(Input::Logged(Ok(vec![error.clone(), error])));
    let counts: Vec<_> = host.tick().devices.iter().map(|row| row.driver_errors).collect();
    assert_eq!(counts, [Some(0), Some(2)]);
}
