//! What a device tells without being asked.

use std::process::Command;

use crate::{
    driver::verbs::{Context, EventKind, PortState, Subject},
    link::{needs_machine, open, run, watch},
};

/// What a device told.
pub(crate) struct Told {
    pub(crate) kind: EventKind,
    pub(crate) subject: Subject,
}

fn told(context: &Context) -> Option<Told> {
    let event = context.next_event().expect("an event")?;
    let (kind, subject) = (event.kind, event.subject);
    Some(Told { kind, subject })
}

/// Waits for the next event.
pub(crate) async fn next(context: &Context) -> Told {
    let fd = watch(context);
    loop {
        if let Some(event) = told(context) {
            return event;
        }
        let mut guard = fd.readable().await.expect("readable");
        match told(context) {
            Some(event) => return event,
            None => guard.clear_ready(),
        }
    }
}

fn ip(words: &str) {
    let status = Command::new("/bin/sh").args(["-c", words]).status();
    assert!(status.expect("a shell").success(), "{words}");
}

/// On a device of its own, so that others keep their link.
#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn a_link_that_goes_down_is_told() {
    needs_machine!();
    ip(
        "PATH=$PATH:/usr/sbin:/sbin; ip link add down0 type veth peer name down1 && ip link set down1 up && ip link set down0 up && rdma link add rxedown type rxe netdev down0",
    );
    run(async {
        let context = open("rxedown");
        assert!(told(&context).is_none());
        ip("PATH=$PATH:/usr/sbin:/sbin; ip link set down0 down");
        loop {
            let event = next(&context).await;
            if event.kind == EventKind::PORT_ERR {
                assert_eq!(event.subject, Subject::Port(1));
                break;
            }
        }
        assert_eq!(context.port(1).expect("a port").state, PortState::DOWN);
        ip("PATH=$PATH:/usr/sbin:/sbin; ip link set down0 up");
        while next(&context).await.kind != EventKind::PORT_ACTIVE {}
        assert_eq!(context.port(1).expect("a port").state, PortState::ACTIVE);
    });
    ip("PATH=$PATH:/usr/sbin:/sbin; rdma link delete rxedown; ip link delete down0");
}
