//! Accounting of network devices against known amounts and the devices' own counters,
//! over IPv4 and IPv6. Needs root and a kernel that takes the programs; says why it is
//! skipped elsewhere.

#![allow(clippy::unwrap_used)]

mod io;

use std::time::Duration;

use io::totals::{OWN_PACKETS, Totals, charge_open_sockets, eventually};
use io::{MIB, Network, account, everyone, fresh, in_sight, quiet, session};
use memgauge_host::memory_counters::NoMemoryCounters;
use memgauge_io::{AccountingOptions, Flow, IoFilter, Meter, Session, list_devices};
use memgauge_testing::{Need, skipped};
use memgauge_trace::{DeviceId, Direction, Owner};

/// Addresses in `b` on device `one` and `two`, and the headers of a datagram.
struct Family {
    one: &'static str,
    two: &'static str,
    any: &'static str,
    udp_headers: u64,
}

const IPV4: Family = Family {
    one: "10.77.1.2",
    two: "10.77.2.2",
    any: "0.0.0.0",
    udp_headers: 28,
};

const IPV6: Family = Family {
    one: "fd77:1::2",
    two: "fd77:2::2",
    any: "::",
    udp_headers: 48,
};

/// As on a kernel without iterators over files and sockets.
const NO_ITERATORS: AccountingOptions = AccountingOptions {
    by_thread: false,
    max_accounts: None,
    forget_ended: false,
    no_iterators: true,
};

fn each_family(check: fn(&mut Session, &Network, &Family)) {
    in_sight(|| {
        let Some((mut session, _turn)) = session() else {
            return;
        };
        let network = Network::new();
        for family in [&IPV4, &IPV6] {
            check(&mut session, &network, family);
        }
    });
}

/// A datagram socket's flow of `count` datagrams of `size`.
fn datagrams(family: &Family, groups: &[(u64, u64)]) -> Flow {
    let count: u64 = groups.iter().map(|g| g.0).sum();
    Flow {
        bytes: groups
            .iter()
            .map(|(n, size)| n * (size + family.udp_headers))
            .sum(),
        operations: count,
        segments: count,
        header_bytes: 0,
    }
}

#[test]
fn datagrams_of_two_devices_at_one_socket_are_told_apart() {
    each_family(|session, network, family| {
        let receiver = network
            .actor('b', &["udp_receive", family.any, "7000", "3000"])
            .ready();
        let pid = receiver.pid();
        let first = network.act('a', &["udp_send", family.one, "7000", "1000", "500"]);
        let second = network.act('a', &["udp_send", family.two, "7000", "1000", "700"]);
        let third = network.act('a', &["udp_send", family.one, "7000", "1000", "500"]);
        receiver.end();
        let (one, two) = (network.device('b', "one"), network.device('b', "two"));
        assert_eq!(
            account(session, pid, one).input,
            datagrams(family, &[(2000, 500)])
        );
        assert_eq!(
            account(session, pid, two).input,
            datagrams(family, &[(1000, 700)])
        );
        let sent = [
            (first, "one", 500),
            (second, "two", 700),
            (third, "one", 500),
        ];
        for (pid, device, size) in sent {
            let device = network.device('a', device);
            assert_eq!(
                account(session, pid, device).output,
                datagrams(family, &[(1000, size)])
            );
        }
    });
}

/// The kernel of the other side answers, searches for its neighbour, and reports its groups. These
/// packets belong to no process.
#[test]
fn echo_requests_belong_to_who_sends_them_and_answers_of_the_kernel_to_nobody() {
    each_family(|session, network, family| {
        let other = network.device('b', "one");
        let before = everyone(session, other);
        let pid = network.act('a', &["ping", family.one, "500", "200"]);
        let ours = account(session, pid, network.device('a', "one"));
        assert_eq!(ours.output, datagrams(family, &[(500, 200)]));
        assert_eq!(ours.input, datagrams(family, &[(500, 200)]));
        assert_eq!(everyone(session, other), before);
    });
}

/// Unattributed bytes of packets so far, by reason.
fn given_to_nobody(session: &Session, reasons: &[&str]) -> u64 {
    let losses = session.losses().unwrap();
    let lost = losses.iter().filter(|loss| reasons.contains(&loss.name));
    lost.map(|loss| loss.count).sum()
}

/// Two CPUs may handle the datagrams at the same moment, and no packet may be charged to the other
/// device. Packets that arrived before there was a reader, while the other CPU held the socket's
/// list, must be counted as lost.
#[test]
fn datagrams_that_come_from_two_devices_at_once_are_told_apart_or_counted_as_lost() {
    each_family(|session, network, family| {
        for round in 0..4 {
            let lost_before = given_to_nobody(session, &["socket_untracked"]);
            let receiver = network
                .actor('b', &["udp_receive", family.any, "7004", "4000"])
                .ready();
            let pid = receiver.pid();
            let send = |to, size| network.actor('a', &["udp_send", to, "7004", "2000", size]);
            let senders = [send(family.one, "500"), send(family.two, "700")];
            senders.into_iter().for_each(|sender| {
                sender.end();
            });
            receiver.end();
            let lacking = [("one", 500), ("two", 700)].map(|(device, size)| {
                let found = account(session, pid, network.device('b', device)).input;
                let expected = datagrams(family, &[(2000, size)]);
                assert!(
                    found.bytes <= expected.bytes && found.operations + 4 >= expected.operations,
                    "round {round}: {found:?}"
                );
                expected.bytes - found.bytes
            });
            let lost = given_to_nobody(session, &["socket_untracked"]) - lost_before;
            assert_eq!(lacking.iter().sum::<u64>(), lost, "round {round}");
        }
    });
}

#[test]
fn datagrams_of_a_shared_socket_belong_to_who_reads_them() {
    each_family(|session, network, family| {
        let mut receiver = network
            .actor('b', &["udp_readers", family.any, "7001", "300", "700"])
            .ready();
        network.act('a', &["udp_send", family.one, "7001", "1000", "400"]);
        receiver.go_on();
        let child: u32 = receiver.line().parse().unwrap();
        let device = network.device('b', "one");
        let parent = account(session, receiver.pid(), device).input;
        assert_eq!(parent, datagrams(family, &[(300, 400)]));
        assert_eq!(
            account(session, child, device).input,
            datagrams(family, &[(700, 400)])
        );
        receiver.go_on();
        receiver.end();
    });
}

#[test]
fn datagrams_sent_through_a_shared_socket_belong_to_who_sends_them() {
    each_family(|session, network, family| {
        let words = [
            "udp_senders",
            family.one,
            "7002",
            "1000",
            "100",
            "2000",
            "200",
        ];
        let mut sender = network.actor('a', &words);
        let child: u32 = sender.line().parse().unwrap();
        let pid = sender.end();
        let device = network.device('a', "one");
        assert_eq!(
            account(session, pid, device).output,
            datagrams(family, &[(1000, 100)])
        );
        assert_eq!(
            account(session, child, device).output,
            datagrams(family, &[(2000, 200)])
        );
    });
}

#[test]
fn datagrams_that_find_no_room_are_charged_too() {
    each_family(|session, network, family| {
        let mut receiver = network
            .actor('b', &["udp_overflow", family.any, "7003"])
            .ready();
        network.act('a', &["udp_send", family.one, "7003", "2000", "500"]);
        receiver.go_on();
        let pid = receiver.end();
        let device = network.device('b', "one");
        assert_eq!(
            account(session, pid, device).input,
            datagrams(family, &[(2000, 500)])
        );
    });
}

#[test]
fn a_stream_is_exact_both_ways() {
    each_family(|session, network, family| {
        let sides = ['a', 'b'].map(|side| Totals::start(session, network, side));
        let size = (16 * MIB).to_string();
        let receiver = network
            .actor('b', &["tcp_receive", family.one, "7100", &size])
            .ready();
        let sender = network.act('a', &["tcp_send", family.one, "7100", &size]);
        let receiver = receiver.end();
        charge_open_sockets(&sides, session, network, OWN_PACKETS);
        let sent = account(session, sender, network.device('a', "one"));
        let received = account(session, receiver, network.device('b', "one"));
        assert!(sent.output.bytes > 16 * MIB && received.input.bytes > 16 * MIB);
        assert!(sent.output.segments > 16 * MIB / 1500 && sent.output.header_bytes > 0);
    });
}

#[test]
fn a_file_sent_without_copying_is_exact() {
    each_family(|session, network, family| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![1u8; 8 << 20]).unwrap();
        let sides = ['a', 'b'].map(|side| Totals::start(session, network, side));
        let receiver = network
            .actor('b', &["tcp_receive", family.one, "7101", "8388608"])
            .ready();
        let path = file.path().display().to_string();
        let sender = network.act('a', &["tcp_sendfile", family.one, "7101", &path]);
        receiver.end();
        charge_open_sockets(&sides, session, network, OWN_PACKETS);
        let sent = account(session, sender, network.device('a', "one")).output;
        assert!(sent.bytes > 8 * MIB && sent.bytes < 9 * MIB, "{sent:?}");
    });
}

#[test]
fn a_stream_that_is_spliced_is_exact() {
    each_family(|session, network, family| {
        let totals = Totals::start(session, network, 'b');
        let receiver = network
            .actor('b', &["tcp_splice", family.one, "7108", "8388608"])
            .ready();
        let pid = receiver.pid();
        network.act('a', &["tcp_send", family.one, "7108", "8388608"]);
        receiver.end();
        charge_open_sockets(&[totals], session, network, OWN_PACKETS);
        let read = account(session, pid, network.device('b', "one")).input;
        assert!(carries(read, 8 * MIB, network, family), "{read:?}");
    });
}

#[test]
fn a_stream_that_only_one_side_writes_is_exact() {
    each_family(|session, network, family| {
        let sides = ['a', 'b'].map(|side| Totals::start(session, network, side));
        let receiver = network
            .actor('b', &["tcp_drain", family.one, "7110"])
            .ready();
        let sender = network.act('a', &["tcp_send_only", family.one, "7110", "1000000"]);
        let receiver = receiver.end();
        charge_open_sockets(&sides, session, network, OWN_PACKETS);
        let sent = account(session, sender, network.device('a', "one")).output;
        let received = account(session, receiver, network.device('b', "one")).input;
        assert!(carries(sent, 1_000_000, network, family), "{sent:?}");
        assert!(
            carries(received, 1_000_000, network, family),
            "{received:?}"
        );
    });
}

#[test]
fn a_stream_that_is_reset_belongs_to_its_ends() {
    each_family(|session, network, family| {
        let server = network
            .actor('b', &["tcp_refuse", family.one, "7111", "3000"])
            .ready();
        let client = network.act('a', &["tcp_refused", family.one, "7111", "20000"]);
        let server = server.end();
        let devices = ['a', 'b'].map(|side| network.device(side, "one"));
        let mut both = || {
            let of_client = account(session, client, devices[0]);
            (of_client, account(session, server, devices[1]))
        };
        eventually(|| {
            let (of_client, of_server) = both();
            of_client.output == of_server.input && of_client.input == of_server.output
        });
        let (of_client, of_server) = both();
        // Bytes charged to one end for sending equal those charged to the other for
        // receiving.
        assert_eq!(of_client.output, of_server.input);
        assert_eq!(of_client.input, of_server.output);
        assert!((20_000..21_500).contains(&of_client.output.bytes));
        assert!((3_000..4_000).contains(&of_client.input.bytes));
    });
}

/// More sockets than there are slots: some keep their accounts elsewhere.
#[test]
fn thousands_of_open_connections_are_exact_together_or_counted_as_lost() {
    const COUNT: &str = "4500";
    const ENDED: [&str; 3] = ["socket_untracked", "never_read", "sender_unknown"];
    each_family(|session, network, family| {
        let again_before = network.segments_sent_again();
        let lost_before = given_to_nobody(session, &ENDED);
        let sides = ['a', 'b'].map(|side| Totals::start(session, network, side));
        let receiver = network
            .actor(
                'b',
                &["tcp_receive_many", family.one, "7109", COUNT, "1000"],
            )
            .ready();
        let words = ["tcp_send_many", family.one, "7109", COUNT, "1000"];
        let sender = network.act('a', &words);
        let receiver = receiver.end();
        let (mut lost, mut wrong) = (0, Vec::new());
        let settled = eventually(|| {
            lost = given_to_nobody(session, &ENDED) - lost_before;
            // The last word of each connection is its TIME_WAIT's, which has no socket.
            let all = sides.iter();
            let all = all.filter_map(|t| t.wrong(session, network, 4500 * 80 + lost));
            wrong = all.collect();
            wrong.is_empty()
        });
        assert!(settled, "{wrong:?}");
        let sent = account(session, sender, network.device('a', "one")).output;
        let received = account(session, receiver, network.device('b', "one")).input;
        let again = network.segments_sent_again() - again_before;
        let lacking = [sent, received].map(|flow| {
            let all = bytes_of_many(flow.operations, 4500, 1000, family);
            assert!(flow.bytes <= all + again * 1008, "{flow:?}");
            all.saturating_sub(flow.bytes)
        });
        // Nothing goes to a network device of no namespace.
        let accounts = session.accounts().unwrap();
        let nowhere = |id: &DeviceId| id.netns == 0 && id.number >> 20 == 0;
        assert!(!accounts.keys().any(|(_, device)| nowhere(device)));
        assert!(
            lacking.iter().sum::<u64>() <= lost,
            "{lacking:?} lacking, {lost} lost {:?}",
            session.losses().unwrap()
        );
    });
}

/// Bytes of `packets` packets that carry the payload of `connections` connections. The packet that
/// opens a connection has a header that is 8 bytes longer.
fn bytes_of_many(packets: u64, connections: u64, payload: u64, family: &Family) -> u64 {
    packets * (family.udp_headers + 24) + connections * (8 + payload)
}

/// Packets are charged at the bond and, on their way out, at the device below.
#[test]
fn a_bond_is_charged_above_its_devices_and_knows_them() {
    let Some((mut session, _turn)) = session() else {
        return;
    };
    let network = Network::new();
    if !network.bond() {
        skipped(Need::Kernel, "this kernel has no bonds");
        return;
    }
    let receiver = network
        .actor('b', &["udp_receive", "0.0.0.0", "7005", "1000"])
        .ready();
    let pid = receiver.pid();
    let sender = network.act('a', &["udp_send", "10.77.9.2", "7005", "1000", "500"]);
    receiver.end();
    let expected = datagrams(&IPV4, &[(1000, 500)]);
    let bond = |side| network.device(side, "bond0");
    assert_eq!(account(&mut session, pid, bond('b')).input, expected);
    assert_eq!(account(&mut session, sender, bond('a')).output, expected);
    let one = network.device('a', "one");
    assert_eq!(account(&mut session, sender, one).output, expected);
    let devices = list_devices(Some(&|_| true));
    assert!(devices[&bond('a')].facts.is_virtual);
    assert_eq!(devices[&bond('a')].facts.kind, "bonding");
}

/// Incoming packets are charged to the bridge. The device in it only passes them on.
#[test]
fn a_bridge_is_charged_for_what_comes_in_through_it() {
    let Some((mut session, _turn)) = session() else {
        return;
    };
    let network = Network::new();
    if !network.bridge() {
        skipped(Need::Kernel, "this kernel has no bridges");
        return;
    }
    let bridge = network.device('b', "bridge0");
    let receiver = network
        .actor('b', &["udp_receive", "0.0.0.0", "7007", "1000"])
        .ready();
    let pid = receiver.pid();
    network.act('a', &["udp_send", "10.77.1.2", "7007", "1000", "500"]);
    receiver.end();
    let expected = datagrams(&IPV4, &[(1000, 500)]);
    assert_eq!(account(&mut session, pid, bridge).input, expected);
    let sender = network.act('b', &["udp_send", "10.77.1.1", "7008", "1000", "500"]);
    assert_eq!(account(&mut session, sender, bridge).output, expected);
    let devices = list_devices(Some(&|_| true));
    assert!(devices[&bridge].facts.is_virtual);
    assert_eq!(devices[&bridge].facts.kind, "bridge");
}

/// A tunnel counts a packet without the header of the Ethernet frame that it carries.
#[test]
fn tunnel_counts_what_is_charged() {
    in_sight(|| {
        let Some((mut session, _turn)) = session() else {
            return;
        };
        let network = Network::new();
        if !network.tunnel() {
            skipped(Need::Kernel, "this kernel has no VXLAN");
            return;
        }
        let tunnel = network.device('a', "tunnel0");
        let sent = || list_devices(Some(&|_| true))[&tunnel].counted.bytes[1];
        let before = sent();
        let receiver = network
            .actor('b', &["udp_receive", "0.0.0.0", "7009", "1000"])
            .ready();
        let sender = network.act('a', &["udp_send", "10.77.3.2", "7009", "1000", "500"]);
        receiver.end();
        let expected = datagrams(&IPV4, &[(1000, 500)]);
        assert_eq!(account(&mut session, sender, tunnel).output, expected);
        assert_eq!(sent() - before, expected.bytes);
    });
}

#[test]
fn namespace_that_only_forwards_is_counted() {
    let Some(_turn) = quiet() else {
        return;
    };
    let network = Network::new();
    network.forward();
    let memory = Box::new(NoMemoryCounters("not asked for".to_owned()));
    let mut meter =
        Meter::start(IoFilter::default(), AccountingOptions::default(), memory).unwrap();
    network.act('a', &["udp_send", "10.99.0.1", "7010", "1000", "500"]);
    let interval = meter.read(true).unwrap();
    let forwarded = network.device('b', "two");
    let rows = interval.rows.iter().filter(|row| {
        row.device == forwarded && row.owner == Owner::DEVICE && row.direction == Direction::Out
    });
    let bytes: u64 = rows.map(|row| row.bytes).sum();
    let expected = datagrams(&IPV4, &[(1000, 500)]).bytes;
    assert!(bytes >= expected, "{bytes} of {expected}");
}

#[test]
fn ends_of_a_pair_name_each_other_and_vanish_with_their_accounts_kept() {
    let Some(_turn) = quiet() else {
        return;
    };
    let memory = Box::new(NoMemoryCounters("not asked for".to_owned()));
    let mut meter =
        Meter::start(IoFilter::default(), AccountingOptions::default(), memory).unwrap();
    let network = Network::new();
    let receiver = network
        .actor('b', &["udp_receive", "0.0.0.0", "7006", "100"])
        .ready();
    let pid = receiver.pid();
    network.act('a', &["udp_send", "10.77.1.2", "7006", "100", "500"]);
    let interval = meter.read(true).unwrap();
    let (here, there) = (network.device('a', "one"), network.device('b', "one"));
    let peer = |id| {
        let device = interval.devices.iter().find(|d| d.device == id).unwrap();
        (device.peer.clone(), device.is_virtual)
    };
    assert_eq!(
        peer(here),
        (format!("one@{}", network.namespace('b')), true)
    );
    assert_eq!(
        peer(there),
        (format!("one@{}", network.namespace('a')), true)
    );
    receiver.end();
    drop(network);
    let after = meter.read(true).unwrap();
    let rows = interval.rows.iter().chain(&after.rows);
    let of_receiver = rows.filter(|r| r.device == there && r.owner.pid().0 == pid);
    let bytes: u64 = of_receiver.map(|r| r.bytes).sum();
    assert_eq!(bytes, datagrams(&IPV4, &[(100, 500)]).bytes);
}

/// Returns true if a flow carries the payload within a thousandth, apart from bytes that TCP sent
/// again. Each packet has headers of 52 bytes (IPv4) or 72 bytes (IPv6), including the time stamp.
fn carries(flow: Flow, payload: u64, network: &Network, family: &Family) -> bool {
    let headers = flow.operations * (family.udp_headers + 24);
    let carried = flow.bytes.saturating_sub(headers);
    let again = network.segments_sent_again() * 1500;
    (payload * 999 / 1000..=payload * 1001 / 1000 + again).contains(&carried)
}

#[test]
fn readers_of_one_stream_get_what_they_read() {
    each_family(|session, network, family| check_readers("tcp_send", session, network, family));
}

/// The next reader starts while packets arrive. They wait until it has read the earlier ones.
#[test]
fn readers_get_what_they_read_while_more_arrives() {
    each_family(|session, network, family| {
        check_readers("tcp_send_evenly", session, network, family);
    });
}

fn check_readers(deed: &str, session: &mut Session, network: &Network, family: &Family) {
    let sizes = ["5000000", "7000000", "4000000"];
    let mut words = vec!["tcp_readers", family.one, "7102"];
    words.extend(sizes);
    let mut receiver = network.actor('b', &words).ready();
    let totals = Totals::start(session, network, 'b');
    let sender = network.actor('a', &[deed, family.one, "7102", "16000000"]);
    let children: Vec<u32> = sizes
        .iter()
        .map(|_| receiver.line().parse().unwrap())
        .collect();
    sender.end();
    receiver.end();
    charge_open_sockets(&[totals], session, network, OWN_PACKETS);
    let device = network.device('b', "one");
    for (child, size) in children.iter().zip(sizes) {
        let read = account(session, *child, device).input;
        assert!(
            carries(read, size.parse().unwrap(), network, family),
            "{read:?} of {size}"
        );
    }
}

#[test]
fn a_connection_passed_to_another_process_belongs_to_its_reader() {
    each_family(|session, network, family| {
        let mut receiver = network
            .actor('b', &["tcp_passed", family.one, "7103", "8000000"])
            .ready();
        let sender = network.actor('a', &["tcp_send", family.one, "7103", "8000000"]);
        let child: u32 = receiver.line().parse().unwrap();
        sender.end();
        let parent = receiver.end();
        let device = network.device('b', "one");
        let read = account(session, child, device).input;
        assert!(carries(read, 8_000_000, network, family), "{read:?}");
        assert!(account(session, parent, device).input.bytes < 1000);
    });
}

#[test]
fn writers_of_one_stream_get_what_they_write() {
    each_family(|session, network, family| {
        let receiver = network
            .actor('b', &["tcp_receive", family.one, "7104", "6500000"])
            .ready();
        let totals = Totals::start(session, network, 'a');
        let words = ["tcp_writers", family.one, "7104", "1500000", "5000000"];
        let mut sender = network.actor('a', &words);
        let child: u32 = sender.line().parse().unwrap();
        let pid = sender.end();
        receiver.end();
        charge_open_sockets(&[totals], session, network, OWN_PACKETS);
        let device = network.device('a', "one");
        let (mine, childs) = (
            account(session, pid, device).output,
            account(session, child, device).output,
        );
        assert!(carries(mine, 1_500_000, network, family), "{mine:?}");
        assert!(carries(childs, 5_000_000, network, family), "{childs:?}");
    });
}

#[test]
fn a_stream_whose_route_changes_is_told_apart_by_device() {
    each_family(check_route_change);
}

#[test]
fn an_open_stream_is_read_out_without_iterators() {
    in_sight(|| {
        let Some((mut session, _turn)) = fresh(NO_ITERATORS) else {
            return;
        };
        let network = Network::new();
        check_route_change(&mut session, &network, &IPV4);
    });
}

fn check_route_change(session: &mut Session, network: &Network, family: &Family) {
    let (version, target, via) = match family.any {
        "::" => ("-6", "fd99::2", ["fd77:1::2", "fd77:2::2"]),
        _ => ("-4", "10.99.0.2", ["10.77.1.2", "10.77.2.2"]),
    };
    network.on('b', &format!("ip {version} addr add {target} dev lo"));
    network.on(
        'a',
        &format!("ip {version} route add {target} via {}", via[0]),
    );
    let receiver = network
        .actor('b', &["tcp_receive", target, "7105", "12000000"])
        .ready();
    let mut sender = network
        .actor('a', &["tcp_send", target, "7105", "4000000", "8000000"])
        .ready();
    let device = network.device('b', "one");
    let pid = receiver.pid();
    // All of the first part has gone the first way.
    assert!(eventually(|| {
        let read = account(session, pid, device).input;
        carries(read, 4_000_000, network, family)
    }));
    network.on(
        'a',
        &format!("ip {version} route replace {target} via {}", via[1]),
    );
    sender.go_on();
    let sender = sender.end();
    let receiver = receiver.end();
    for (device, size) in [("one", 4_000_000), ("two", 8_000_000)] {
        let sent = account(session, sender, network.device('a', device)).output;
        let received = account(session, receiver, network.device('b', device)).input;
        assert!(carries(sent, size, network, family), "{device}: {sent:?}");
        assert!(
            carries(received, size, network, family),
            "{device}: {received:?}"
        );
    }
}

#[test]
fn a_connection_that_was_open_before_is_accounted_from_then_on() {
    in_sight(|| {
        let Some(_turn) = quiet() else {
            return;
        };
        let network = Network::new();
        let mut receiver = network
            .actor('b', &["tcp_accept_before", IPV4.one, "7106", "5000000"])
            .ready();
        let mut sender = network
            .actor('a', &["tcp_send", IPV4.one, "7106", "1000000", "4000000"])
            .ready();
        assert_eq!(receiver.line(), "ready");
        std::thread::sleep(Duration::from_millis(200));
        let mut session = Session::start(AccountingOptions::default()).unwrap();
        sender.go_on();
        let (sender, receiver) = (sender.end(), receiver.end());
        let sent = account(&mut session, sender, network.device('a', "one")).output;
        let received = account(&mut session, receiver, network.device('b', "one")).input;
        let losses = session.losses().unwrap();
        for flow in [sent, received] {
            assert!(
                carries(flow, 4_000_000, &network, &IPV4),
                "{flow:?} of {sent:?} and {received:?}, {losses:?}"
            );
        }
    });
}

#[test]
fn a_server_that_listened_before_is_accounted_to_its_workers() {
    check_server(AccountingOptions::default());
}

/// Its handshakes go to the worker that first reads.
#[test]
fn a_server_that_listened_before_is_found_without_iterators() {
    check_server(NO_ITERATORS);
}

fn check_server(setup: AccountingOptions) {
    in_sight(|| {
        let Some(_turn) = quiet() else {
            return;
        };
        let network = Network::new();
        for (address, headers) in [("127.0.0.1", 52), ("::1", 72)] {
            let mut server = network.actor('a', &["web_server", address, "7107"]);
            let workers: Vec<u32> = server
                .line()
                .split(' ')
                .map(|w| w.parse().unwrap())
                .collect();
            let mut session = Session::start(setup).unwrap();
            let lo = network.device('a', "lo");
            let before = network.counted('a', "lo");
            let client = network.act('a', &["web_client", address, "7107", "200"]);
            // The last packets are sent after the client has ended.
            let mut last = network.counted('a', "lo");
            eventually(|| {
                std::thread::sleep(Duration::from_millis(50));
                let now = network.counted('a', "lo");
                std::mem::replace(&mut last, now) == now
            });
            // The order matters: packets between the two readings are then only in the device's
            // count.
            let all = everyone(&mut session, lo);
            let counted = network.counted('a', "lo");
            let gained = |i: usize| counted[i] - before[i];
            // A connection has 3 packets of handshake, 2 of data, their
            // acknowledgements, and 3 or 4 at its end. The last one is unattributed: it
            // has no socket any more.
            let nobodys = 200 * headers;
            for (bytes, packets, sum) in [(0, 1, all.input), (2, 3, all.output)] {
                // The loopback device does not count a link's header.
                let device = gained(bytes);
                assert!(gained(packets) >= sum.operations);
                assert!(
                    sum.bytes <= device && device - sum.bytes <= nobodys,
                    "{address}: {} of {device}",
                    sum.bytes
                );
            }
            let answered = |pid| account(&mut session, pid, lo).output.bytes;
            let answers: u64 = workers.into_iter().map(answered).sum();
            assert!(
                (200 * 600..200 * (600 + 6 * headers)).contains(&answers),
                "{answers}"
            );
            assert!(account(&mut session, client, lo).output.bytes >= 200 * 100);
            server.go_on();
            server.end();
        }
    });
}

/// Ids of loaded programs that send packets' bytes to accounts.
fn loaded() -> Vec<u32> {
    let programs = libbpf_rs::query::ProgInfoIter::default();
    let ours = programs.filter(|p| p.name.to_string_lossy().starts_with("packet_queued"));
    ours.map(|p| p.id).collect()
}

/// IDs of the BPF programs that this process holds, directly or by links to their hooks. Processes
/// of other tests load the same programs.
fn held() -> Vec<u32> {
    let open = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    let told = open.filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    let id = |text: String| {
        let id = text
            .lines()
            .find_map(|line| line.strip_prefix("prog_id:"))?;
        id.trim().parse().ok()
    };
    told.filter_map(id).collect()
}

#[test]
fn nothing_stays_behind_in_the_kernel() {
    let Some(_turn) = quiet() else {
        return;
    };
    let session = Session::start(AccountingOptions::default()).unwrap();
    let held = held();
    let mut ours = loaded();
    ours.retain(|id| held.contains(id));
    assert!(!ours.is_empty());
    drop(session);
    // The kernel frees a program a moment after its last link is gone.
    let gone = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        !loaded().iter().any(|id| ours.contains(id))
    });
    assert!(gone, "{:?}", loaded());
}

/// Links of programs to their hooks that this process holds.
fn links() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let what = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    what.filter(|to| to.to_string_lossy().contains("bpf_link"))
        .count()
}

/// Whether a UDP socket is open in the namespace of any process.
fn has_udp_sockets() -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let tables =
        processes.flat_map(|p| ["udp", "udp6"].map(|name| p.path().join("net").join(name)));
    let mut open = tables.filter_map(|table| std::fs::read_to_string(table).ok());
    open.any(|table| table.lines().count() > 1)
}

/// Every receive of any socket would pay for it.
#[test]
fn readers_of_datagrams_are_looked_for_once_there_is_a_udp_socket() {
    let types = std::fs::read("/sys/kernel/btf/vmlinux").unwrap_or_default();
    if memchr::memmem::find(&types, b"\0btf_trace_sock_recv_length\0").is_none() {
        skipped(Need::Kernel, "this kernel has another hook");
        return;
    }
    let Some((_session, _turn)) = fresh(AccountingOptions::default()) else {
        return;
    };
    if has_udp_sockets() {
        skipped(Need::Kernel, "a UDP socket is open on this machine");
        return;
    }
    let before = links();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(links(), before);
    let _socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let hung = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        links() == before + 1
    });
    assert!(hung, "{} links, {before} before", links());
}
