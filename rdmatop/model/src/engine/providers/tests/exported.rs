//! The names that the drivers of Linux 6.1, 6.12 and 7.2 give their counters, as their sources and modules
//! have them. They are facts about those drivers: the tables must have a meaning for each.

use super::Provider;

/// Counters of devices, which no port has (`alloc_hw_device_stats`), but for those of parts of hfi1's chip.
/// Those of mlx5 in switchdev mode have the names of its ports.
pub(super) const OF_DEVICES: &[(&str, &str)] = &[
    (
        "cxgb4",
        "ip4InSegs;ip4OutSegs;ip4RetransSegs;ip4OutRsts;ip6InSegs;ip6OutSegs;ip6RetransSegs;ip6OutRsts",
    ),
    ("mlx4_core", "num_cqovf;rq_num_udsdprd"),
    (
        "mana",
        "sent_cnps;received_ecns;received_cnp_count;qp_congested_events;qp_recovered_events;rate_inc_events",
    ),
    (
        "efa",
        "submitted_cmds;completed_cmds;cmds_err;no_completion_cmds;keep_alive_rcvd;alloc_pd_err;create_qp_err;\
         create_cq_err;reg_mr_err;alloc_ucontext_err;create_ah_err;mmap_err",
    ),
];

/// Provider, and names. A semicolon stands between two.
#[rustfmt::skip] // names, as many as a line has room for
pub(super) const EXPORTED: &[(Provider, &str)] = &[
    // hw/bnxt_re/hw_counters.c
    (Provider::Bnxt, "\
        active_pds;active_ahs;active_qps;active_srqs;active_cqs;active_mrs;active_mws;rx_pkts;rx_bytes;tx_pkts;\
        tx_bytes;recoverable_errors;rx_roce_errors;rx_roce_discards;to_retransmits;seq_err_naks_rcvd;\
        max_retry_exceeded;rnr_naks_rcvd;missing_resp;unrecoverable_err;bad_resp_err;local_qp_op_err;\
        local_protection_err;mem_mgmt_op_err;remote_invalid_req_err;remote_access_err;remote_op_err;dup_req;\
        res_exceed_max;res_length_mismatch;res_exceeds_wqe;res_opcode_err;res_rx_invalid_rkey;res_rx_domain_err;\
        res_rx_no_perm;res_rx_range_err;res_tx_invalid_rkey;res_tx_domain_err;res_tx_no_perm;res_tx_range_err;\
        res_irrq_oflow;res_unsup_opcode;res_unaligned_atomic;res_rem_inv_err;res_mem_err;res_srq_err;res_cmp_err;\
        res_invalid_dup_rkey;res_wqe_format_err;res_cq_load_err;res_srq_load_err;res_tx_pci_err;res_rx_pci_err;\
        oos_drop_count;tx_atomic_req;tx_read_req;tx_read_resp;tx_write_req;tx_send_req;rx_atomic_req;rx_read_req;\
        rx_read_resp;rx_write_req;rx_send_req;rx_roce_good_pkts;rx_roce_good_bytes;rx_out_of_buffer;active_rc_qps;\
        active_ud_qps;watermark_pds;watermark_ahs;watermark_qps;watermark_rc_qps;watermark_ud_qps;watermark_srqs;\
        watermark_cqs;watermark_mrs;watermark_mws;resize_cq_cnt;tx_roce_errors;tx_roce_discards;tx_roce_only_pkts;\
        tx_roce_only_bytes;rx_roce_only_pkts;rx_roce_only_bytes;tx_cnp_pkts;rx_cnp_pkts;rx_ecn_marked_pkts;\
        pacing_reschedule;pacing_complete;pacing_alerts;db_fifo_register;local_ack_timeout_err;packet_seq_err;\
        rnr_nak_retry_err;implied_nak_seq_err;req_remote_invalid_request;req_remote_access_errors;duplicate_request;\
        resp_local_length_error;req_cqe_error;resp_cqe_error;resp_remote_access_errors;out_of_sequence;\
        rx_atomic_requests;rx_read_requests;rx_write_requests;out_of_buffer;np_cnp_pkts;rp_cnp_handled;\
        np_ecn_marked_roce_packets"),
    // hw/mana/counters.c
    (Provider::Mana, "\
        requester_timeout;requester_oos_nak;requester_rnr_nak;responder_rnr_nak;responder_oos;responder_dup_request;\
        requester_implicit_nak;requester_readresp_psn_mismatch;nak_inv_req;nak_access_error;nak_opp_error;\
        nak_inv_read;responder_local_len_error;requestor_local_prot_error;responder_rem_access_error;\
        responder_local_qp_error;responder_malformed_wqe;general_hw_error;requester_rnr_nak_retries_exceeded;\
        requester_retries_exceeded;total_fatal_error;received_cnps;num_qps_congested;rate_inc_events;\
        num_qps_recovered;current_rate;dup_rx_requests;tx_bytes;rx_bytes;rx_send_requests;rx_write_requests;\
        rx_read_requests;tx_packets;rx_packets"),
    // hw/cxgb4/provider.c
    (Provider::Cxgb4, "\
        ip4InSegs;ip4OutSegs;ip4RetransSegs;ip4OutRsts;ip6InSegs;ip6OutSegs;ip6RetransSegs;ip6OutRsts"),
    // hw/irdma/verbs.c
    (Provider::Irdma, "\
        ip4InDiscards;ip4InTruncatedPkts;ip4OutNoRoutes;ip6InDiscards;ip6InTruncatedPkts;ip6OutNoRoutes;\
        tcpRetransSegs;tcpInOptErrors;tcpInProtoErrors;rxVlanErrors;cnpHandled;cnpIgnored;cnpSent;ip4InOctets;\
        ip4InPkts;ip4InReasmRqd;ip4InMcastPkts;ip4OutOctets;ip4OutPkts;ip4OutSegRqd;ip4OutMcastPkts;ip6InOctets;\
        ip6InPkts;ip6InReasmRqd;ip6InMcastPkts;ip6OutOctets;ip6OutPkts;ip6OutSegRqd;ip6OutMcastPkts;tcpInSegs;\
        tcpOutSegs;iwInRdmaReads;iwInRdmaSends;iwInRdmaWrites;iwOutRdmaReads;iwOutRdmaSends;iwOutRdmaWrites;iwRdmaBnd;\
        iwRdmaInv;ip4InMcastOctets;ip4OutMcastOctets;ip6InMcastOctets;ip6OutMcastOctets;RxUDP;TxUDP;RxECNMrkd;\
        RetransSegs;InOptErrors;InProtoErrors;InSegs;OutSegs;InRdmaReads;InRdmaSends;InRdmaWrites;OutRdmaReads;\
        OutRdmaSends;OutRdmaWrites;RdmaBnd;RdmaInv;RNR sent;RNR received;ord limit count;ird limit count;Rx atomics;\
        Tx atomics;Nak Sequence Error;Nak Sequence Error Implied;RTO;Rcvd Out of order packets;CRC errors"),
    // hw/mlx5/counters.c
    (Provider::Mlx5, "\
        duplicate_request;rnr_nak_retry_err;packet_seq_err;implied_nak_seq_err;local_ack_timeout_err;\
        resp_local_length_error;resp_cqe_error;req_cqe_error;req_remote_invalid_request;req_remote_access_errors;\
        resp_remote_access_errors;resp_cqe_flush_error;req_cqe_flush_error;roce_adp_retrans;roce_adp_retrans_to;\
        roce_slow_restart;roce_slow_restart_cnps;roce_slow_restart_trans;rp_cnp_ignored;rp_cnp_handled;\
        np_ecn_marked_roce_packets;np_cnp_sent;cc_rx_ce_pkts;cc_rx_cnp_pkts;cc_tx_cnp_pkts;rx_write_requests;\
        rx_read_requests;rx_atomic_requests;rx_dct_connect;out_of_buffer;out_of_sequence;\
        req_transport_retries_exceeded;req_rnr_retries_exceeded;rx_icrc_encapsulated;vport_rx_write_requests;\
        vport_rx_read_requests;vport_rx_atomic_requests;vport_rx_dct_connect;vport_out_of_buffer;\
        vport_out_of_sequence;rdma_tx_packets;\
        rdma_tx_bytes;rdma_rx_packets;rdma_rx_bytes;vport_roce_adp_retrans;vport_roce_adp_retrans_to;\
        vport_roce_slow_restart;vport_roce_slow_restart_cnps;vport_roce_slow_restart_trans;vport_duplicate_request;\
        vport_rnr_nak_retry_err;vport_packet_seq_err;vport_implied_nak_seq_err;vport_local_ack_timeout_err;\
        vport_resp_local_length_error;vport_resp_cqe_error;vport_req_cqe_error;vport_req_remote_invalid_request;\
        vport_req_remote_access_errors;vport_resp_remote_access_errors;vport_resp_cqe_flush_error;\
        vport_req_cqe_flush_error;vport_req_transport_retries_exceeded;vport_req_rnr_retries_exceeded"),
    // hw/mlx4/main.c
    (Provider::Mlx4, "\
        rq_num_lle;sq_num_lle;rq_num_lqpoe;sq_num_lqpoe;rq_num_lpe;sq_num_lpe;rq_num_wrfe;sq_num_wrfe;sq_num_mwbe;\
        sq_num_bre;sq_num_rire;rq_num_rire;sq_num_rae;rq_num_rae;sq_num_roe;sq_num_tree;sq_num_rree;rq_num_rnr;\
        sq_num_rnr;rq_num_oos;sq_num_oos;rq_num_dup;sq_num_to;num_cqovf;rq_num_udsdprd"),
    // hw/efa/efa_verbs.c
    (Provider::Efa, "\
        submitted_cmds;completed_cmds;cmds_err;no_completion_cmds;keep_alive_rcvd;alloc_pd_err;create_qp_err;\
        create_cq_err;reg_mr_err;alloc_ucontext_err;create_ah_err;mmap_err;tx_bytes;tx_pkts;rx_bytes;rx_pkts;rx_drops;\
        send_bytes;send_wrs;recv_bytes;recv_wrs;rdma_read_wrs;rdma_read_bytes;rdma_read_wr_err;rdma_read_resp_bytes;\
        rdma_write_wrs;rdma_write_bytes;rdma_write_wr_err;rdma_write_recv_bytes;retrans_bytes;retrans_pkts;\
        retrans_timeout_events;unresponsive_remote_events;impaired_remote_conn_events"),
    // hw/erdma/erdma_verbs.c
    (Provider::Erdma, "\
        tx_reqs_cnt;tx_packets_cnt;tx_bytes_cnt;tx_disable_drop_cnt;tx_bps_limit_drop_cnt;tx_pps_limit_drop_cnt;\
        rx_packets_cnt;rx_bytes_cnt;rx_disable_drop_cnt;rx_bps_limit_drop_cnt;rx_pps_limit_drop_cnt"),
    // hw/hns/hns_roce_main.c
    (Provider::Hns, "\
        rx_rc_pkt;rx_uc_pkt;rx_ud_pkt;rx_xrc_pkt;rx_pkt;rx_err_pkt;rx_cnp_pkt;tx_rc_pkt;tx_uc_pkt;tx_ud_pkt;\
        tx_xrc_pkt;tx_pkt;tx_err_pkt;tx_cnp_pkt;trp_get_mpt_err_pkt;trp_get_irrl_err_pkt;ecn_doorbell;rx_buffer;\
        trp_rx_sof;cq_cqe;cq_poe;cq_notify"),
    // sw/rxe/rxe_hw_counters.c
    (Provider::Rxe, "\
        sent_pkts;rcvd_pkts;duplicate_request;out_of_seq_request;rcvd_rnr_err;send_rnr_err;rcvd_seq_err;ack_deferred;\
        retry_exceeded_err;retry_rnr_exceeded_err;completer_retry_err;send_err;link_downed;rdma_sends;rdma_recvs;\
        sent_bytes;rcvd_bytes"),
    // hw/hfi1/chip.c
    (Provider::Hfi1, "\
        TxUnVLErr,32;TxInvalLen,32;TxMMLenErr,32;TxUnderrun,32;TxFlowStall,32;TxDropped,32;TxHdrErr,32;TxPkt;TxWords;\
        TxWait;TxFlitVL0;TxFlitVL15;TxPktVL0;TxPktVL15;TxWaitVL0;TxWaitVL15;RxPkt;RxWords;SwLinkDown,32;SwLinkUp,32;\
        UnknownFrame;XmitDscd,32;XmitDscdVl0,32;XmitDscdVl15,32;XmitCstrErr;RcvCstrErr;LoopPkts;RcResend;RnrNak;\
        OtherNak;RcTimeOut;PktDrop;DmaWait;RcSeqNak;RcDupRew;RdmaSeq;Unaligned;SeqNak;RcCrWait;RcAcks;RcQacks;\
        RcDelayComp;RcvHdrOvr0;RcvHdrOvr159"),
];
