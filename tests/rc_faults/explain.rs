//! What `explain` says of the paths over devices.

use wharf::{MemoryType, Operation};

use crate::bench::{Two, context, control, gone, run};

fn said(two: &Two, operation: Operation) -> String {
    let host = MemoryType::Host;
    two.here.explain(operation, host, host, 1 << 20).to_string()
}

#[test]
fn paths_over_devices_are_explained() {
    alone!();
    run(async {
        for atomics in [true, false] {
            control("clear");
            if !atomics {
                control("fault no_atomics@1+=1");
            }
            let two = Two::over_tcp(context("rc_verbs").expect("a context"))
                .await
                .expect("connects");
            for operation in [Operation::Put, Operation::Get, Operation::TagSend] {
                let text = said(&two, operation);
                assert!(text.contains("emu0 port 1, emu1 port 1; else "), "{text}");
            }
            let text = said(&two, Operation::Atomic);
            let words = match atomics {
                true => "exposed for atomics of network devices: emu0 port 1, emu1 port 1",
                false => "not atomics of network devices: emu0 does none",
            };
            assert!(text.contains(words), "{text}");
            two.talk(1000).await.expect("talks");
            // DEVICE_FATAL of the second: its rails are gone.
            assert_eq!(control("event 1 8 0"), "1");
            while !said(&two, Operation::Put).contains("emu0 port 1 (1 failed); else ") {
                two.talk(1000).await.expect("talks");
            }
            two.end().await;
            gone().await;
            // Over TCP there is nothing of the sort.
            control("clear");
            let two = Two::over_tcp(context("tcp").expect("a context")).await;
            let two = two.expect("connects");
            let text = said(&two, Operation::Put);
            assert!(
                text.starts_with("messages over tcp") && !text.contains("devices"),
                "{text}"
            );
            two.end().await;
        }
    });
}
