//! Names of the methods that a driver adds to verbs, by object and method
//! (include/uapi/rdma/mlx5_user_ioctl_cmds.h). Each driver numbers its own from the same beginning, so a
//! number has a name only where the driver is known.

use rdmatop_common::{counters::VerbKey, verb};

use super::{machine::Machine, providers::Provider};

/// Where the numbers of a driver's objects and methods begin (`UVERBS_ID_NS_SHIFT`).
const OWN: u16 = 1 << 12;
/// `MLX5_IB_METHOD_DEVX_OBJ_CREATE`: makes an object of the device past ib_core, a queue pair for one.
pub(super) const DEVX_CREATE: u32 = verb::ioctl(OWN + 1, OWN);

/// mlx5's objects from [`OWN`] on, and the names of the methods of each.
const MLX5: [&[&str]; 10] = [
    &[
        "devx_other",
        "devx_query_uar",
        "devx_query_eqn",
        "devx_subscribe_event",
    ],
    &[
        "devx_obj_create",
        "devx_obj_destroy",
        "devx_obj_modify",
        "devx_obj_query",
        "devx_obj_async_query",
    ],
    &["devx_umem_reg", "devx_umem_dereg"],
    &["flow_matcher_create", "flow_matcher_destroy"],
    &["devx_async_cmd_fd_alloc"],
    &["devx_async_event_fd_alloc"],
    &["var_obj_alloc", "var_obj_destroy"],
    &["pp_obj_alloc", "pp_obj_destroy"],
    &["uar_obj_alloc", "uar_obj_destroy"],
    &["steering_anchor_create", "steering_anchor_destroy"],
];

/// The name of a verb on a device of this driver, where it is the driver's own.
pub(super) fn name(driver: Provider, number: u32) -> Option<&'static str> {
    if driver != Provider::Mlx5 || number & (verb::WRITE | verb::CM) != 0 {
        return None;
    }
    let place = |id: u32| usize::try_from(id.checked_sub(OWN.into())?).ok();
    let methods = MLX5.get(place(number >> 16)?)?;
    methods.get(place(number & 0xffff)?).copied()
}

impl Machine {
    /// The name of a verb that a process called, where it is a driver's own: the process has only devices of
    /// this driver open.
    pub(super) fn driver_verb(&self, key: VerbKey, process: u64) -> Option<&'static str> {
        if verb::name(key.verb).is_some() {
            return None;
        }
        let by_qps = self.processes.get(process)?.qps.keys();
        let mut drivers: Vec<Provider> = by_qps
            .filter_map(|uid| Some(self.devices.get(*uid)?.provider()))
            .chain(self.devices.opened_by(key.pid))
            .collect();
        drivers.dedup();
        match drivers.as_slice() {
            [driver] => name(*driver, key.verb),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_s_methods_have_names_where_the_driver_is_known() {
        assert_eq!(name(Provider::Mlx5, DEVX_CREATE), Some("devx_obj_create"));
        assert_eq!(
            name(Provider::Mlx5, verb::ioctl(4098, 4097)),
            Some("devx_umem_dereg")
        );
        assert_eq!(
            name(Provider::Mlx5, verb::ioctl(4105, 4096)),
            Some("steering_anchor_create")
        );
        for number in [
            verb::ioctl(4097, 4101),
            verb::ioctl(4106, 4096),
            verb::ioctl(4097, 0),
            verb::ioctl(4, 4096),
            verb::write(9),
            verb::UNKNOWN,
        ] {
            assert_eq!(name(Provider::Mlx5, number), None, "{number:#x}");
        }
        assert_eq!(name(Provider::Efa, DEVX_CREATE), None);
    }
}
