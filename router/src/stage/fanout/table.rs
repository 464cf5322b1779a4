//! The Table of one object, with the column that lists and watches of the merged view have: whose it is.
//!
//! Caller: `edge`, for a get through the merged view.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http::{HeaderMap, Method, Response, StatusCode};
use portolan_merge::list::{ListFormat, ListLeg, ListMerge, ListOptions, MergedMeta, Wants};

use crate::resource::upstream::{Body, gather};
use crate::value::classify::{ApiRequest, Verb, View};
use crate::value::fault::Fault;
use crate::value::media::asks_as;

/// Of one object, with its row.
const MAX_TABLE_BYTES: usize = 8 << 20;

/// Whether the answer may be the Table of one object.
pub(crate) fn is_wanted(asked: &ApiRequest, headers: &HeaderMap) -> bool {
    let object = asked
        .resource
        .as_ref()
        .is_some_and(|resource| resource.subresource.is_none());
    let table = || asks_as(headers, "Table");
    asked.view == View::Merged && asked.verb == Verb::Get && asked.method == Method::GET && object && table()
}

/// The answer with the column; as it is, if it is no Table.
pub(crate) async fn with_cluster(cluster: &Arc<str>, response: Response<Body>) -> Result<Response<Body>, Fault> {
    if response.status() != StatusCode::OK || response.headers().contains_key(CONTENT_ENCODING) {
        return Ok(response);
    }
    let (mut head, body) = response.into_parts();
    let body = gather(body, MAX_TABLE_BYTES)
        .await
        .map_err(|error| Fault::Unavailable {
            message: format!("the Table of member cluster {cluster} cannot be read: {error}"),
            cluster: Some(cluster.to_string()),
            sent: false,
        })?;
    let table = column_of(cluster, &body).unwrap_or(body);
    head.headers.insert(CONTENT_LENGTH, table.len().into());
    Ok(Response::from_parts(head, Body::from(table)))
}

fn column_of(cluster: &Arc<str>, body: &Bytes) -> Option<Bytes> {
    let leg = ListLeg {
        cluster: cluster.clone(),
        filter: None,
    };
    let options = ListOptions {
        unique: false,
        cluster_column: true,
        hide_objects: false,
        max_item_bytes: MAX_TABLE_BYTES,
    };
    let mut merge = ListMerge::new(ListFormat::Table, vec![leg], options);
    let mut out = VecDeque::new();
    merge.push(0, body.clone(), &mut out).ok()?;
    merge.end(0, &mut out).ok()?;
    if merge.wants() != Wants::Meta {
        return None;
    }
    let meta = merge.metas().first()?.clone().unwrap_or_default();
    let meta = MergedMeta {
        resource_version: meta.resource_version,
        ..MergedMeta::default()
    };
    merge.set_meta(meta, &mut out).ok()?;
    Some(Bytes::from(out.make_contiguous().concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_one_object_says_whose_it_is() {
        let table = r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"17"},"columnDefinitions":[{"name":"Name","type":"string"}],"rows":[{"cells":["a"],"object":{"kind":"PartialObjectMetadata","metadata":{"name":"a"}}}]}"#;
        let wide = column_of(&"west".into(), &Bytes::from(table)).unwrap();
        let wide: serde_json::Value = serde_json::from_slice(&wide).unwrap();
        assert_eq!(wide["columnDefinitions"][1]["name"], "Cluster");
        assert_eq!(wide["rows"][0]["cells"], serde_json::json!(["a", "west"]));
        assert_eq!(wide["metadata"]["resourceVersion"], "17");
        for other in [r#"{"kind":"Pod","apiVersion":"v1","metadata":{}}"#, "no JSON"] {
            assert_eq!(column_of(&"west".into(), &Bytes::from(other)), None, "{other}");
        }
    }
}
