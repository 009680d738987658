use super::*;
use crate::object::Included;
use http::HeaderValue;

fn headers(name: header::HeaderName, values: &[&str]) -> HeaderMap {
    values.iter().map(|value| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
}

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

#[test]
fn first_served_alternative_is_the_form() {
    let params = Params::parse(None).unwrap();
    let (json, table, metadata) = (Some(Form::Json), Some(Form::Table(Included::Metadata)), Some(Form::Metadata));
    let kubectl = format!("{TABLE},application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json");
    let metadata_client = format!(
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{METADATA},application/json"
    );
    let long = format!("text/html,{}", "x/y,".repeat(1000));
    let rows: &[(&[&str], Option<Form>)] = &[
        (&[], json),
        (&[""], json),
        (&[" "], json),
        (&["application/json"], json),
        (&["Application/JSON; charset=utf-8"], json),
        (&["application/json;stream=watch"], json),
        (&["*/*"], json),
        (&["*"], json),
        (&["application/*"], json),
        (&["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"], json),
        (&["application/vnd.kubernetes.protobuf, application/json"], json),
        (&[TABLE], table),
        (&[&kubectl], table),
        (&["application/json;as=Table;v=v1beta1;g=meta.k8s.io, application/json"], json),
        (&["application/json ; as = Table ; v = v1 ; g = meta.k8s.io"], table),
        (&["application/json;as=\"Table\";v=v1;g=meta.k8s.io"], table),
        (&[METADATA], metadata),
        (&[METADATA_LIST], metadata),
        (&[&metadata_client], metadata),
        // Ranges are ordered by quality, then by how specific they are, then as listed.
        (&[&format!("application/json;q=0.5,{TABLE}")], table),
        (&[&format!("{TABLE};q=0.5,application/json")], json),
        (&[&format!("{METADATA},{TABLE}")], metadata),
        (&[&format!("*/*,{TABLE}")], table),
        (&[&format!("*/*;q=1.0,{TABLE};q=0.9")], json),
        // Several headers count as one list.
        (&["text/html", TABLE], table),
        (&["application/json;q=0, text/*"], None),
        (&["application/json;q=x"], None),
        (&["text/html"], None),
        (&["application/xml"], None),
        (&["*/json"], None),
        (&["application/json/x"], None),
        (&["application/json;as=Table"], None),
        (&["application/json;as=Table;v=v2;g=meta.k8s.io"], None),
        (&["application/json;as=Table;v=v1;g=other.k8s.io"], None),
        (&["application/json;as=Other;v=v1;g=meta.k8s.io"], None),
        (&["application/json;v=v1"], None),
        (&["application/json;stream=other"], None),
        (&["application/json;sv=v1"], None),
        (&["nonsense"], None),
        (&["/"], None),
        (&[";;,,=,;="], None),
        (&[&long], None),
    ];
    for (values, expected) in rows {
        match (form(&headers(header::ACCEPT, values), &params), expected) {
            (Ok(form), Some(expected)) => assert_eq!(form, *expected, "{values:?}"),
            (Err(refusal), None) => {
                assert_eq!(refusal.code(), 406, "{values:?}");
                assert!(refusal.message().len() < 600, "what was asked for is cut: {}", refusal.message().len());
            }
            (other, _) => panic!("{values:?}: {other:?}"),
        }
    }
}

#[test]
fn gzip_is_taken_where_it_is_named() {
    let takes = |values: &[&str]| accepts_gzip(&headers(header::ACCEPT_ENCODING, values));
    for taken in [&["gzip"][..], &["deflate, GZIP ;q=0.5"], &["br", "gzip;q=1"], &["gzip;level=9"]] {
        assert!(takes(taken), "{taken:?}");
    }
    for not in [&[][..], &["*"], &["gzip;q=0"], &["gzip; Q=0.0"], &["gzip;q=x"], &["x-gzip"], &["identity"]] {
        assert!(!takes(not), "{not:?}");
    }
}
