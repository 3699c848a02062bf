//! Names of the methods that a driver adds to verbs, by object and method: on objects of its own, and on
//! those of every driver. Each driver numbers its own from the same beginning, so a number has a name only
//! where the driver is known. They are those of Linux 6.1, 6.12 and 7.2, in
//! include/uapi/rdma/{mlx5_user_ioctl_cmds,efa-abi,bnxt_re-abi}.h. In 7.2 hns, mana, erdma and irdma have
//! none.

use rdmatop_common::{counters::VerbKey, verb};

use super::{machine::Machine, providers::Provider};

/// Where the numbers of a driver's objects and methods begin (`UVERBS_ID_NS_SHIFT`).
const OWN: u16 = 1 << 12;

/// Objects of every driver (include/uapi/rdma/ib_user_ioctl_cmds.h).
const DEVICE: u16 = 0;
const PD: u16 = 1;
const MR: u16 = 7;
const FLOW: u16 = 9;
const FLOW_ACTION: u16 = 13;
const DM: u16 = 14;

/// For each driver and object: the names of the methods from [`OWN`] on.
#[rustfmt::skip] // an object is a line
const METHODS: &[(Provider, u16, &str)] = &[
    (Provider::Mlx5, DEVICE, "mlx5_query_port get_data_direct_sysfs_path"),
    (Provider::Mlx5, PD, "mlx5_query_pd"),
    (Provider::Mlx5, FLOW, "mlx5_create_flow mlx5_destroy_flow"),
    (Provider::Mlx5, FLOW_ACTION, "create_modify_header create_packet_reformat"),
    (Provider::Mlx5, DM, "mlx5_map_dm_op_addr mlx5_query_dm"),
    (Provider::Mlx5, OWN, "devx_other devx_query_uar devx_query_eqn devx_subscribe_event"),
    (Provider::Mlx5, OWN + 1, "devx_obj_create devx_obj_destroy devx_obj_modify devx_obj_query devx_obj_async_query"),
    (Provider::Mlx5, OWN + 2, "devx_umem_reg devx_umem_dereg"),
    (Provider::Mlx5, OWN + 3, "flow_matcher_create flow_matcher_destroy"),
    (Provider::Mlx5, OWN + 4, "devx_async_cmd_fd_alloc"),
    (Provider::Mlx5, OWN + 5, "devx_async_event_fd_alloc"),
    (Provider::Mlx5, OWN + 6, "var_obj_alloc var_obj_destroy"),
    (Provider::Mlx5, OWN + 7, "pp_obj_alloc pp_obj_destroy"),
    (Provider::Mlx5, OWN + 8, "uar_obj_alloc uar_obj_destroy"),
    (Provider::Mlx5, OWN + 9, "steering_anchor_create steering_anchor_destroy"),
    (Provider::Efa, MR, "efa_query_mr"),
    (Provider::Bnxt, OWN, "alloc_page destroy_page"),
    (Provider::Bnxt, OWN + 1, "notify_drv"),
    (Provider::Bnxt, OWN + 2, "get_toggle_mem release_toggle_mem"),
    // One list numbers the methods of both objects.
    (Provider::Bnxt, OWN + 3, DBR),
    (Provider::Bnxt, OWN + 4, DBR),
];
const DBR: &str = "dbr_alloc dbr_free get_default_dbr";

/// The name of a verb on a device of this driver, where it is the driver's own.
pub(super) fn name(driver: Provider, number: u32) -> Option<&'static str> {
    if number & (verb::WRITE | verb::CM) != 0 {
        return None;
    }
    let is_it = |of: &&(Provider, u16, _)| of.0 == driver && u32::from(of.1) == number >> 16;
    let (.., methods) = METHODS.iter().find(is_it)?;
    let place = (number & 0xffff).checked_sub(OWN.into())?;
    methods.split(' ').nth(usize::try_from(place).ok()?)
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
            .filter_map(|uid| Some(self.devices.get(*uid)?.provider))
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
    use rdmatop_common::devx::CREATE;

    #[test]
    fn a_driver_s_methods_have_names_where_the_driver_is_known() {
        assert_eq!(name(Provider::Mlx5, CREATE), Some("devx_obj_create"));
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
            verb::ioctl(FLOW, 0),
            verb::ioctl(FLOW, 4098),
            verb::write(9),
            verb::UNKNOWN,
        ] {
            assert_eq!(name(Provider::Mlx5, number), None, "{number:#x}");
        }
        assert_eq!(name(Provider::Efa, CREATE), None);
    }

    #[test]
    fn a_number_that_drivers_share_has_each_driver_s_own_name() {
        let of = |object, method| {
            [
                Provider::Mlx5,
                Provider::Efa,
                Provider::Bnxt,
                Provider::Hns,
                Provider::Other,
            ]
            .map(|driver| name(driver, verb::ioctl(object, method)))
        };
        assert_eq!(of(FLOW, 4096), [Some("mlx5_create_flow"), None, None, None, None]);
        assert_eq!(of(MR, 4096), [None, Some("efa_query_mr"), None, None, None]);
        assert_eq!(
            of(OWN, 4097),
            [Some("devx_query_uar"), None, Some("destroy_page"), None, None]
        );
        assert_eq!(
            of(OWN + 4, 4098),
            [None, None, Some("get_default_dbr"), None, None]
        );
        assert_eq!(of(DEVICE, 4097)[0], Some("get_data_direct_sysfs_path"));
    }
}
