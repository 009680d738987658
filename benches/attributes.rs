//! What a selector costs: extraction once when a change is written, evaluation once an event.
#![allow(missing_docs)]

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use watchcore::{Attribute, Labels, raw};

const KEY: &[u8] = b"/registry/pods/shop/web-7d4b9c6f5d-x2x9q";

/// A pod as an API server stores it, 2 KiB.
const POD: &str = concat!(
    r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web-7d4b9c6f5d-x2x9q","generateName":"web-7d4b9c6f5d-","#,
    r#""namespace":"shop","uid":"0b3c7e0a-6f1b-4f0e-9a57-0f5f3a1f2d11","resourceVersion":"184467","#,
    r#""creationTimestamp":"2026-03-04T05:06:07Z","labels":{"app":"web","pod-template-hash":"7d4b9c6f5d","#,
    r#""tier":"front","version":"v12"},"annotations":{"prometheus.io/scrape":"true","prometheus.io/port":"8080"},"#,
    r#""ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-7d4b9c6f5d","#,
    r#""uid":"5f1c6a44-51c1-4f0f-8a9e-0d8a0e6e1c55","controller":true,"blockOwnerDeletion":true}]},"#,
    r#""spec":{"volumes":[{"name":"kube-api-access-abcde","projected":{"sources":[{"serviceAccountToken":"#,
    r#"{"expirationSeconds":3607,"path":"token"}}],"defaultMode":420}}],"containers":[{"name":"web","#,
    r#""image":"registry.example.com/shop/web:v12","ports":[{"containerPort":8080,"protocol":"TCP"}],"#,
    r#""env":[{"name":"LOG_LEVEL","value":"info"},{"name":"DB_HOST","value":"db.shop.svc"}],"#,
    r#""resources":{"limits":{"cpu":"500m","memory":"256Mi"},"requests":{"cpu":"250m","memory":"128Mi"}},"#,
    r#""volumeMounts":[{"name":"kube-api-access-abcde","readOnly":true,"#,
    r#""mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}],"terminationMessagePath":"/dev/termination-log","#,
    r#""terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}],"restartPolicy":"Always","#,
    r#""terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","serviceAccountName":"default","#,
    r#""nodeName":"node-17","securityContext":{"runAsNonRoot":true,"fsGroup":1000},"#,
    r#""schedulerName":"default-scheduler","priority":0,"enableServiceLinks":true,"#,
    r#""preemptionPolicy":"PreemptLowerPriority"},"status":{"phase":"Running","conditions":[{"type":"Ready","#,
    r#""status":"True","lastProbeTime":null,"lastTransitionTime":"2026-03-04T05:06:09Z"},{"type":"PodScheduled","#,
    r#""status":"True","lastProbeTime":null,"lastTransitionTime":"2026-03-04T05:06:07Z"}],"hostIP":"10.0.0.17","#,
    r#""podIP":"10.4.1.23","podIPs":[{"ip":"10.4.1.23"}],"startTime":"2026-03-04T05:06:07Z","qosClass":"Burstable"}}"#,
);

fn declared() -> (Vec<Attribute>, Option<Labels>) {
    let node = Attribute::json("spec.nodeName", "/spec/nodeName").expect("is a pointer");
    let labels = Labels::json("/metadata/labels").expect("is a pointer");
    (vec![node.protobuf(&[2, 10]).expect("is a path")], Some(labels))
}

/// The same pod in short, in Kubernetes' storage form: the metadata and the node, and the rest as bytes.
fn stored() -> Vec<u8> {
    let field = |number: u8, bytes: &[u8]| {
        let length = if bytes.len() < 128 {
            vec![bytes.len() as u8]
        } else {
            vec![bytes.len() as u8 | 0x80, (bytes.len() >> 7) as u8]
        };
        [vec![number << 3 | 2], length, bytes.to_vec()].concat()
    };
    let label = |key: &str, value: &str| field(11, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat());
    let metadata = [
        field(1, b"web-7d4b9c6f5d-x2x9q"),
        field(3, b"shop"),
        label("app", "web"),
        label("pod-template-hash", "7d4b9c6f5d"),
        label("tier", "front"),
        label("version", "v12"),
        field(12, &POD.as_bytes()[..400]),
    ]
    .concat();
    let spec = [field(2, &POD.as_bytes()[..1000]), field(10, b"node-17")].concat();
    let object = [field(1, &metadata), field(2, &spec), field(3, &POD.as_bytes()[..400])].concat();
    [&b"k8s\0"[..], &field(1, b"\x0a\x02v1\x12\x03Pod"), &field(2, &object)].concat()
}

fn extract(c: &mut Criterion) {
    let (fields, labels) = declared();
    let extract = raw::extraction(fields, labels).expect("can be declared");
    let mut group = c.benchmark_group("extract");
    for (name, value) in [("two pointers of 2 KiB JSON", POD.as_bytes()), ("the same of protobuf", &stored())] {
        let mut out = Vec::new();
        assert_eq!(extract(KEY, value, &mut out), 0);
        assert!(out.ends_with(b"node-17appwebpod-template-hash7d4b9c6f5dtierfrontversionv12"));
        group.bench_function(name, |b| {
            b.iter(|| {
                out.clear();
                extract(black_box(KEY), black_box(value), &mut out)
            });
        });
    }
    group.finish();
}

fn evaluate(c: &mut Criterion) {
    let (fields, labels) = declared();
    let mut attributes = Vec::new();
    raw::extraction(fields, labels).expect("can be declared")(KEY, POD.as_bytes(), &mut attributes);
    let mut group = c.benchmark_group("evaluate");
    for (text, passes) in
        [("app=web,tier in (back,front)", true), ("app=web,version!=v12", false), ("app,!debug", true)]
    {
        let selector = raw::label_selector(text).expect("parses");
        assert_eq!(selector(&attributes), passes);
        group.bench_function(text, |b| b.iter(|| selector(black_box(&attributes))));
    }
    group.finish();
}

criterion_group!(benches, extract, evaluate);
criterion_main!(benches);
