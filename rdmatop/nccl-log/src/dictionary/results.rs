//! With what a call of NCCL failed (`ncclResult_t`), where no message says why, and what PyTorch says of a
//! collective that does not end (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).

use super::{
    Entry,
    Pattern::{CallResult, Text},
};

const WARN: &str = "the first WARN before it, here or in the log of another rank; without one, the first `FILE:LINE -> NUMBER` of that thread names \
                    the place in NCCL's source";
/// `CUDACHECKTHREAD` in src/group.cc.
const WARN_OR_CUDA: &str = "the first WARN before it, here or in the log of another rank; without one, the first `FILE:LINE -> NUMBER` of that \
                            thread names the place in NCCL's source; with NCCL up to 2.12, a lone `group.cc:LINE -> 2` or `-> 3` may be an error of \
                            CUDA instead: 2 no memory left, 3 CUDA did not start";
const PROGRAM: &str = "the WARN before it says which argument; look at the call in the program";

/// In the order of `ncclResult_t`.
pub(super) const ENTRIES: &[Entry] = messages! {
    "failed-call" Follows means "a call of NCCL failed because CUDA or HIP failed (ncclUnhandledCudaError)";
        next "the first WARN before it names the error; `sudo dmesg` shows Xid errors of an NVIDIA GPU";
        in "NCCL 2.3 on, RCCL": CallResult(1);

    "failed-call" Follows means "a call of NCCL failed with a system error (ncclSystemError)";
        next WARN_OR_CUDA;
        in "NCCL 2.3 on, RCCL": CallResult(2);

    "failed-call" Follows means "a call of NCCL failed with an internal error (ncclInternalError)";
        next WARN_OR_CUDA;
        in "NCCL 2.3 on, RCCL": CallResult(3);

    "failed-call" Follows means "a program gave NCCL an argument that it refuses (ncclInvalidArgument)";
        next PROGRAM;
        in "NCCL 2.3 on, RCCL": CallResult(4);

    "failed-call" Follows means "a program uses NCCL in a way that it refuses (ncclInvalidUsage)";
        next PROGRAM;
        in "NCCL 2.3 on, RCCL": CallResult(5);

    "failed-call" Follows means "a call of NCCL failed because of another rank or the network (ncclRemoteError)";
        next WARN;
        in "NCCL 2.13 on, RCCL of ROCm 5.4 on": CallResult(6);

    // Before `aborted`, which quotes it.
    "watchdog" Follows means "a collective did not end in time (PyTorch's watchdog): a rank came late or not at all, or the network stands still";
        next "of all ranks' logs, the rank without such a line, or with the smallest `last enqueued NCCL work`, is the one that the others wait for: \
            its log and its stack; where all are equal, the network: `rdmatop` on their hosts";
        in "PyTorch 1.12 on": Text(&["Watchdog caught collective operation timeout"]);
        in "PyTorch 2.4 on": Text(&["Received a dump signal due to a collective timeout from "]);

    "watchdog" Follows means "PyTorch's watchdog of collectives stands still itself: a call of CUDA or NCCL does not return, or a thread that waits \
        for one holds Python's lock";
        next "the stack of that process (`sudo py-spy dump --native --pid PID`); where all ranks say so, that of the rank whose log ends first";
        in "PyTorch 2.2 on": Text(&["ProcessGroupNCCL's watchdog got stuck for "]);

    "no-unique-id" Follows means "the first rank did not hand out the ID that a communicator begins with: it came late to its first collective, or \
        ended";
        next "of rank 0, its first error, or what it does for so long before (data, checkpoints); the others wait as long as the `timeout` of \
            init_process_group";
        in "PyTorch 1.8 on": Text(&["is setting up NCCL communicator and retr"]);

    "no-store" Fault means "the process where ranks meet (MASTER_ADDR, --rdzv-endpoint) does not answer";
        next "that address and port, alike on every host: whether a process listens there (`ss -ltn` on its host), a firewall, and a name that leads \
            to 127.0.0.1 or 127.0.1.1 (/etc/hosts)";
        in "PyTorch 1.12 on": Text(&["The client socket has timed out after ", " while trying to connect to "]);
        in "PyTorch 1.9 on": Text(&["RendezvousConnectionError: The connection to the C10d store has failed"]);

    "no-rendezvous" Fault means "not all nodes came to the rendezvous in time (torchrun)";
        next "on each node, whether its torchrun runs, with the same --nnodes, --rdzv-id and --rdzv-endpoint, and reaches that address and port; the \
            node whose log ends first, or has none";
        in "PyTorch 1.9 on": Text(&["RendezvousTimeoutError"]);

    "store-port" Fault means "the port where ranks are to meet is taken on this host";
        next "`sudo ss -ltnp` shows by whom: another job, or a process that an earlier one left; end it, or choose another MASTER_PORT; of all \
            ranks, the first one alone listens there";
        in "PyTorch 1.12 on": Text(&["The server socket has failed to listen on any local network address"]);

    "aborted" Follows means "PyTorch ended its communicator because of an error before";
        next "the reason that the line names, or the first error before it";
        in "PyTorch 1.12 on": Text(&["NCCL communicator was aborted on rank "]);

    "store-gone" Note means "the process where ranks meet (rank 0, or torchrun's first agent) ended before others";
        next "nothing at the end of a job; else its log: the others only report it";
        in "PyTorch 2.5 on": Text(&["recvValue", "failed on SocketImpl("]);
        in "PyTorch 2.5 on": Text(&["sendBytes failed on SocketImpl("]);
};
