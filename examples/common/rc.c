#include "rc.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 1 };

volatile sig_atomic_t rc_stop;

static void stop(int signal)
{
	(void)signal;
	rc_stop = 1;
}

void rc_handle_signals(unsigned seconds)
{
	struct sigaction action = { .sa_handler = stop };

	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGALRM, &action, NULL);
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(seconds);
}

int rc_fork(const char *name)
{
	pid_t parent = getpid();
	unsigned left = alarm(0);
	pid_t child = fork();

	if (child < 0)
		rc_die("fork");
	alarm(left);
	if (child == 0) {
		/* However the parent ends, nothing of it stays. It may have ended already. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		prctl(PR_SET_NAME, name);
	}
	return child;
}

void rc_die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, errno ? strerror(errno) : "failed");
	exit(1);
}

static struct ibv_context *open_device(const char *name)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_context *context = NULL;

	for (int i = 0; list && i < count; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	if (list)
		ibv_free_device_list(list);
	if (!context) {
		fprintf(stderr, "cannot open RDMA device %s: %s (Debian: is ibverbs-providers installed?)\n", name,
			strerror(errno ? errno : ENODEV));
		exit(1);
	}
	return context;
}

void rc_open(struct rc *rc, const char *device, int gid_index, size_t size, int depth)
{
	struct rlimit all = { RLIM_INFINITY, RLIM_INFINITY };

	memset(rc, 0, sizeof(*rc));
	rc->size = size;
	rc->gid_index = gid_index;
	rc->timeout = 14;
	/* The memory of MRs and queues is locked. Without the right to lift the limit it may suffice as it is. */
	setrlimit(RLIMIT_MEMLOCK, &all);
	rc->context = open_device(device);
	rc->pd = ibv_alloc_pd(rc->context);
	if (!rc->pd)
		rc_die("ibv_alloc_pd");
	rc->buffer = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (rc->buffer == MAP_FAILED)
		rc_die("mmap");
	rc->mr = ibv_reg_mr(rc->pd, rc->buffer, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!rc->mr)
		rc_die("ibv_reg_mr");
	rc->cq = ibv_create_cq(rc->context, 2 * depth, NULL, NULL, 0);
	if (!rc->cq)
		rc_die("ibv_create_cq");
}

void rc_second(struct rc *rc, const struct rc *first)
{
	*rc = *first;
	rc->qp = NULL;
}

void rc_create_qp(struct rc *rc, int depth)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.send_cq = rc->cq,
		.recv_cq = rc->cq,
		.cap = { .max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_port_attr port;

	if (ibv_query_port(rc->context, PORT, &port))
		rc_die("ibv_query_port");
	rc->qp = ibv_create_qp(rc->pd, &attr);
	if (!rc->qp)
		rc_die("ibv_create_qp");
	rc->self = (struct rc_address){
		.qpn = rc->qp->qp_num,
		.psn = (uint32_t)rc_now() & 0xffffff,
		.rkey = rc->mr->rkey,
		.mtu = port.active_mtu,
		.buffer = (uintptr_t)rc->buffer,
	};
	if (ibv_query_gid(rc->context, PORT, rc->gid_index, &rc->self.gid))
		rc_die("ibv_query_gid");
}

void rc_exchange(struct rc *rc, int socket)
{
	ssize_t sent = send(socket, &rc->self, sizeof(rc->self), MSG_NOSIGNAL), got = 0;

	if (sent == sizeof(rc->self))
		got = recv(socket, &rc->peer, sizeof(rc->peer), MSG_WAITALL);
	if (got == sizeof(rc->peer))
		return;
	if (!rc_stop)
		fprintf(stderr, "the peer ended before it was connected\n");
	exit(!rc_stop);
}

void rc_to_init(struct rc *rc)
{
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT,
		.port_num = PORT,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};

	if (ibv_modify_qp(rc->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		rc_die("to INIT");
}

void rc_connect(struct rc *rc, int retry_cnt)
{
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		/* The smaller of both ends: a packet that is too large for one of them is dropped. */
		.path_mtu = rc->self.mtu < rc->peer.mtu ? rc->self.mtu : rc->peer.mtu,
		.dest_qp_num = rc->peer.qpn,
		.rq_psn = rc->peer.psn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12, /* 0.64 ms */
		.ah_attr = {
			.is_global = 1,
			.port_num = PORT,
			.grh = { .dgid = rc->peer.gid, .sgid_index = rc->gid_index, .hop_limit = 64 },
		},
	};
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = rc->self.psn,
		.timeout = rc->timeout,
		.retry_cnt = retry_cnt,
		.rnr_retry = 7, /* for ever */
		.max_rd_atomic = 1,
	};

	if (ibv_modify_qp(rc->qp, &rtr,
			  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		rc_die("to RTR");
	if (ibv_modify_qp(rc->qp, &rts,
			  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				  IBV_QP_MAX_QP_RD_ATOMIC))
		rc_die("to RTS");
}

void rc_post_send(struct rc *rc, uint64_t wr_id, enum ibv_wr_opcode opcode, size_t offset, uint32_t length,
		  size_t remote_offset)
{
	struct ibv_sge sge = { .addr = (uintptr_t)rc->buffer + offset, .length = length, .lkey = rc->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = wr_id,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = rc->peer.buffer + remote_offset, .rkey = rc->peer.rkey },
	};
	struct ibv_send_wr *bad;

	if ((errno = ibv_post_send(rc->qp, &wr, &bad)))
		rc_die("ibv_post_send");
}

void rc_post_recv(struct rc *rc, uint64_t wr_id, size_t offset, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)rc->buffer + offset, .length = length, .lkey = rc->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 };
	struct ibv_recv_wr *bad;

	if ((errno = ibv_post_recv(rc->qp, &wr, &bad)))
		rc_die("ibv_post_recv");
}

bool rc_next(struct rc *rc, struct ibv_wc *wc)
{
	const uint64_t spin = 50000, patience = 10000000000;
	uint64_t begin = rc_now();
	bool said = false;

	while (!rc_stop) {
		int got = ibv_poll_cq(rc->cq, 1, wc);

		if (got < 0)
			rc_die("ibv_poll_cq");
		if (got == 0) {
			uint64_t waited = rc_now() - begin;

			/* A busy loop is what HPC programs do. This one shares its CPUs, so it sleeps after a while. */
			if (waited > spin)
				usleep(50);
			if (waited > patience && !said) {
				fprintf(stderr, "no completion for 10 s: has the peer died, or does a firewall drop "
						"UDP port 4791?\n");
				said = true;
			}
			continue;
		}
		if (wc->status != IBV_WC_SUCCESS) {
			fprintf(stderr, "work request %llu failed: %s\n", (unsigned long long)wc->wr_id,
				ibv_wc_status_str(wc->status));
			exit(1);
		}
		return true;
	}
	return false;
}

void rc_close(struct rc *rc)
{
	ibv_destroy_qp(rc->qp);
	ibv_destroy_cq(rc->cq);
	ibv_dereg_mr(rc->mr);
	ibv_dealloc_pd(rc->pd);
	ibv_close_device(rc->context);
	munmap(rc->buffer, rc->size);
}

uint64_t rc_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}
