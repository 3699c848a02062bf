/* Uses verbs in ways that work and are wrong.
 *
 *   misuse [-d DEVICE] [-t SECONDS] mr-churn|qp-churn|qp-leak|memlock|gid|storm
 *
 *   mr-churn  registers and deregisters a buffer for each transfer it might make, as fast as it can
 *   qp-churn  makes a QP and destroys it, as fast as it can
 *   qp-leak   makes eight QPs each second and destroys none
 *   memlock   as a user without rights, with 8 KiB of memory that may be locked, registers 1 MiB ten times a second
 *   gid       connects a QP by an index of the GID table that is empty, ten times a second
 *   storm     makes 32 QPs, brings them to RTS and destroys them, again and again
 */
#include "rc.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

enum { NOBODY = 65534, LARGE = 1 << 20, EMPTY_GID = 200, MANY = 32 };

static void mr_churn(struct rc *rc)
{
	struct ibv_mr *mr = ibv_reg_mr(rc->pd, rc->buffer, 4096, IBV_ACCESS_LOCAL_WRITE);

	if (!mr)
		rc_die("ibv_reg_mr");
	ibv_dereg_mr(mr);
}

static void qp_churn(struct rc *rc)
{
	struct rc other;

	rc_second(&other, rc);
	rc_create_qp(&other, 1);
	rc_to_init(&other);
	ibv_destroy_qp(other.qp);
}

static void qp_leak(struct rc *rc)
{
	struct rc other;

	rc_second(&other, rc);
	rc_create_qp(&other, 1);
	usleep(125000);
}

static bool memlock(struct rc *rc)
{
	struct ibv_mr *mr = ibv_reg_mr(rc->pd, rc->buffer, LARGE, IBV_ACCESS_LOCAL_WRITE);

	usleep(100000);
	if (mr)
		ibv_dereg_mr(mr);
	return !mr;
}

/* The QP is in INIT. Its GID would be the source address of its packets; there is none at this index. */
static bool gid(struct rc *rc)
{
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = rc->qp->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {
			.is_global = 1,
			.port_num = 1,
			.grh = { .dgid = rc->self.gid, .sgid_index = EMPTY_GID, .hop_limit = 64 },
		},
	};
	int failed = ibv_modify_qp(rc->qp, &rtr,
				   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	static bool said;

	if (failed && !said)
		printf("ibv_modify_qp: %s\n", strerror(failed));
	said = true;
	usleep(100000);
	return failed;
}

/* Each QP is connected to itself: that takes no other process, and the same steps. */
static void storm(struct rc *rc)
{
	struct rc all[MANY];

	for (int i = 0; i < MANY; i++) {
		rc_second(&all[i], rc);
		rc_create_qp(&all[i], 1);
		all[i].peer = all[i].self;
		rc_to_init(&all[i]);
		rc_connect(&all[i], 7);
	}
	for (int i = 0; i < MANY; i++)
		ibv_destroy_qp(all[i].qp);
}

/* CAP_IPC_LOCK would lift the limit. */
static void give_up_rights(void)
{
	struct rlimit small = { 8192, 8192 };
	pid_t parent = getppid();
	int signal = 0;

	prctl(PR_GET_PDEATHSIG, &signal);
	if (setrlimit(RLIMIT_MEMLOCK, &small) || setuid(NOBODY))
		rc_die("give up rights");
	/* setuid(2) took away that this process dies with the one that started it. */
	prctl(PR_SET_PDEATHSIG, signal);
	if (signal && getppid() != parent)
		exit(1);
}

int main(int argc, char **argv)
{
	const char *device = "rxe0", *what;
	unsigned long long done = 0, failed = 0;
	unsigned seconds = 0;
	struct rc rc;
	int option;

	while ((option = getopt(argc, argv, "d:t:")) != -1) {
		if (option == 'd')
			device = optarg;
		else if (option == 't')
			seconds = (unsigned)atoi(optarg);
		else
			argc = 0;
	}
	if (argc != optind + 1) {
		fprintf(stderr, "usage: misuse [-d DEVICE] [-t SECONDS] mr-churn|qp-churn|qp-leak|memlock|gid|storm\n");
		return 2;
	}
	what = argv[optind];
	rc_handle_signals(seconds);
	rc_open(&rc, device, 0, LARGE, 16);
	rc_create_qp(&rc, 1);
	if (!strcmp(what, "memlock"))
		give_up_rights();
	if (!strcmp(what, "gid"))
		rc_to_init(&rc);
	printf("%s: PID %d, %s\n", what, getpid(), device);
	while (!rc_stop) {
		if (!strcmp(what, "mr-churn"))
			mr_churn(&rc);
		else if (!strcmp(what, "qp-churn"))
			qp_churn(&rc);
		else if (!strcmp(what, "qp-leak"))
			qp_leak(&rc);
		else if (!strcmp(what, "memlock"))
			failed += memlock(&rc);
		else if (!strcmp(what, "gid"))
			failed += gid(&rc);
		else if (!strcmp(what, "storm"))
			storm(&rc);
		else {
			fprintf(stderr, "misuse: %s is not known\n", what);
			return 2;
		}
		done++;
	}
	printf("done: %llu calls, %llu failed\n", done, failed);
	return 0;
}
