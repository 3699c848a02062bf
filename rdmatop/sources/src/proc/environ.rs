//! `/proc/PID/environ`: the variables that steer RDMA stacks.
//!
//! The file shows the environment at exec; what the program set later is not in it. An environment holds
//! secrets: only the variables below are read, and only the name of one that no library is known to have.
use std::collections::BTreeSet;

use rdmatop_base::order::Gather as _;
use rdmatop_base::{
    text,
    variables::{OTHERS, value_is_shown},
};

/// A value longer than this is cut; library paths and host lists run to kilobytes.
const VALUE_LIMIT: usize = 256;
/// No library has a variable with a longer name.
const NAME_LIMIT: usize = 128;
/// The largest number of variables. A job has some dozens; a process may have made up a hundred thousand, and
/// each is compared with all before it.
const MOST: usize = 256;
/// The largest number of bytes, which are kept as long as the process lives.
const MOST_BYTES: usize = 16 << 10;

/// In place of the value of a variable that no library is known to have.
const HIDDEN: &str = "(not shown)";

#[rustfmt::skip] // names, as many as a line has room for
const PREFIXES: [&str; 22] = [
    "NCCL_", "RCCL_", "UCX_", "FI_", "NVSHMEM_", "OMPI_", "MPICH_", "I_MPI_", "MV2_", "PSM2_", "PSM3_",
    "PMIX_RANK", "RDMAV_", "IBV_", "MLX4_", "MLX5_", "EFA_", "GLOO_", "HPCX_", "SHARP_", "NIXL_", "MORI_",
];

/// The RDMA-relevant variables, safe to print, in the order of the file. Of a name that occurs twice the
/// first counts, as with getenv(3). At most `MOST`, of `MOST_BYTES`.
pub fn relevant(raw: &[u8]) -> Vec<(String, String)> {
    let mut out: Vec<(String, String)> = Vec::new();
    let mut bytes = 0;
    let others: BTreeSet<&str> = OTHERS.split_ascii_whitespace().gather();
    let is_relevant =
        |name: &str| PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || others.contains(name);
    for entry in raw.split(|b| *b == 0) {
        let Some(equals) = entry.iter().position(|b| *b == b'=') else {
            continue;
        };
        if equals > NAME_LIMIT {
            continue;
        }
        let name = text::sanitize(&entry[..equals]);
        if is_relevant(&name) && out.iter().all(|(known, _)| *known != name) {
            let value = if value_is_shown(&name) {
                text::sanitize_bounded(&entry[equals + 1..], VALUE_LIMIT)
            } else {
                HIDDEN.to_owned()
            };
            bytes += name.len() + value.len();
            if bytes > MOST_BYTES {
                break;
            }
            out.push((name, value));
            if out.len() == MOST {
                break;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_rdma_variables_are_taken_and_the_first_of_a_name_counts() {
        let raw =
            b"PATH=/bin\0NCCL_IB_HCA=mlx5_0,mlx5_1\0AWS_SECRET_ACCESS_KEY=x\0RANK=3\0NCCL_IB_HCA=other\0\
            SLURM_JWT=secret\0SLURM_JOB_ID=211\0UCX_TLS=rc\x1b[2J\0RANKS=1\0NCCL_EMPTY=\0NOEQUALS\0";
        let want = [
            ("NCCL_IB_HCA", "mlx5_0,mlx5_1"),
            ("RANK", "3"),
            ("SLURM_JOB_ID", "211"),
            ("UCX_TLS", "rc\\x1b[2J"),
            ("NCCL_EMPTY", "(not shown)"),
        ];
        assert_eq!(relevant(raw), want.map(|(k, v)| (k.to_owned(), v.to_owned())));
    }

    #[test]
    fn a_value_may_hold_equals_signs_and_a_long_one_is_cut() {
        let mut raw = b"FI_PROVIDER=a=b=c\0UCX_TLS=".to_vec();
        raw.extend([b'x'; 5000]);
        let got = relevant(&raw);
        assert_eq!(got[0].1, "a=b=c");
        assert_eq!(got[1].1.len(), VALUE_LIMIT);
    }

    #[test]
    fn whatever_a_process_sets_takes_little_memory() {
        let mut raw = Vec::new();
        for n in 0..1000 {
            raw.extend(format!("NCCL_IB_HCA{n}").bytes());
            // Each byte becomes four.
            raw.extend([1; 100]);
            raw.extend([b'='].into_iter().chain([1; 300]).chain([0]));
        }
        let bytes = |got: &[(String, String)]| -> usize { got.iter().map(|(k, v)| k.len() + v.len()).sum() };
        let got = bytes(&relevant(&raw));
        assert!((MOST_BYTES / 2..=MOST_BYTES).contains(&got), "{got}");
    }

    #[test]
    fn of_a_variable_that_no_library_has_only_the_name_is_taken() {
        let raw = b"NCCL_SECRET=x\0UCX_PASSWORD=x\0FI_TOKEN=x\0OMPI_MCA_key=x\0NCCL_IB_HCA=mlx5_0\0";
        let values: Vec<_> = relevant(raw).into_iter().map(|(_, value)| value).collect();
        assert_eq!(values, [HIDDEN, HIDDEN, HIDDEN, HIDDEN, "mlx5_0"]);
    }

    /// Rules and checks judge by values of variables: each of those must be shown.
    #[test]
    fn each_job_variable_has_its_value() {
        let names = "SLURM_JOB_ID SLURM_JOB_NAME SLURM_STEP_ID SLURM_PROCID SLURM_LOCALID SLURM_NTASKS SLURM_NNODES \
            SLURM_NODEID PBS_JOBID LSB_JOBID FLUX_JOB_ID RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR \
            MASTER_PORT PMI_RANK PMI_SIZE CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES";
        for name in names.split_ascii_whitespace() {
            let got = relevant(format!("{name}=1").as_bytes());
            assert_eq!(got, [(name.to_owned(), "1".to_owned())]);
        }
    }

    #[test]
    fn an_environment_that_is_made_to_be_long_is_not_taken_whole() {
        let mut raw = Vec::new();
        raw.extend([b"UCX_".as_slice(), &[b'x'; 5000], b"=1\0"].concat());
        for n in 0..100_000 {
            raw.extend(format!("UCX_{n}=1\0").bytes());
        }
        let got = relevant(&raw);
        assert_eq!((got.len(), got[0].0.as_str()), (MOST, "UCX_0"));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(raw: Vec<u8>, tail: Vec<u8>) {
            let _ = relevant(&raw);
            let _ = relevant(&[b"NCCL_".as_slice(), &tail].concat());
        }
    }
}
