//! With what a call of NCCL failed (`ncclResult_t`), where no message says why, and what PyTorch says of a
//! collective that does not end (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).

use super::{
    Entry,
    Pattern::{CallResult, Text},
};

const WARN: &str = "the first WARN before it, here or in the log of another rank; without one, the first `FILE:LINE -> NUMBER` of that thread \
                    names the place in NCCL's source";
/// `CUDACHECKTHREAD` in src/group.cc.
const WARN_OR_CUDA: &str = "the first WARN before it, here or in the log of another rank; without one, the first `FILE:LINE -> NUMBER` of that \
                            thread names the place in NCCL's source; with NCCL up to 2.12, a lone `group.cc:LINE -> 2` or `-> 3` may be an \
                            error of CUDA instead: 2 no memory left, 3 CUDA did not start";
const PROGRAM: &str = "the WARN before it says which argument; look at the call in the program";

/// In the order of `ncclResult_t`.
pub(super) const ENTRIES: &[Entry] = messages! {
    "failed-call" Follows means "a call of NCCL failed because CUDA or HIP failed (ncclUnhandledCudaError)";
        next "the first WARN before it names the error; `dmesg` shows Xid errors of an NVIDIA GPU";
        in "NCCL 2.3 on, RCCL": CallResult(1) =>
            "init.cc:950 -> 1 [Async thread]";

    "failed-call" Follows means "a call of NCCL failed with a system error (ncclSystemError)";
        next WARN_OR_CUDA;
        in "NCCL 2.3 on, RCCL": CallResult(2) =>
            "group.cc:64 -> 2 [Async thread]";

    "failed-call" Follows means "a call of NCCL failed with an internal error (ncclInternalError)";
        next WARN_OR_CUDA;
        in "NCCL 2.3 on, RCCL": CallResult(3) =>
            "group.cc:64 -> 3 [Async thread]";

    "failed-call" Follows means "a program gave NCCL an argument that it refuses (ncclInvalidArgument)";
        next PROGRAM;
        in "NCCL 2.3 on, RCCL": CallResult(4) =>
            "group.cc:64 -> 4 [Async thread]";

    "failed-call" Follows means "a program uses NCCL in a way that it refuses (ncclInvalidUsage)";
        next PROGRAM;
        in "NCCL 2.3 on, RCCL": CallResult(5) =>
            "group.cc:64 -> 5 [Async thread]";

    "failed-call" Follows means "a call of NCCL failed because of another rank or the network \
        (ncclRemoteError)";
        next WARN;
        in "NCCL 2.13 on, RCCL of ROCm 5.4 on": CallResult(6) =>
            "proxy.cc:878 -> 6 [Progress Thread]";

    "watchdog" Follows means "a collective did not end in time (PyTorch's watchdog): a rank came late or not \
        at all, or the network stands still";
        next "of all ranks' logs, the rank without such a line, or with the smallest `last enqueued NCCL \
            work`, is the one that the others wait for: its log and its stack; where all are equal, the \
            network: `rdmatop` on their hosts";
        in "PyTorch 1.12 on": Text(&["Watchdog caught collective operation timeout"]) =>
            "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, \
            NumelOut=1, Timeout(ms)=600000) ran for 600013 milliseconds before timing out.";
        in "PyTorch 2.4 on": Text(&["Received a dump signal due to a collective timeout from "]) =>
            "Received a dump signal due to a collective timeout from rank 7 and we will try our best to dump the \
            debug info. Last enqueued NCCL work: 56116, last completed NCCL work: 56116.";

    "watchdog" Follows means "PyTorch's watchdog of collectives stands still itself: a call of CUDA or NCCL \
        does not return, or a thread that waits for one holds Python's lock";
        next "the stack of that process (`py-spy dump --native --pid PID`); where all ranks say so, that of the \
            rank whose log ends first";
        in "PyTorch 2.2 on": Text(&["ProcessGroupNCCL's watchdog got stuck for "]) =>
            "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring \
            enqueued collectives.";
};
