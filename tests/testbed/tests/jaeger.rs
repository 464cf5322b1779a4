//! Jaeger starts and answers. Spans are sent by the tests of the programs that make them.

use portolan_testbed::Jaeger;

#[tokio::test]
async fn jaeger_answers_queries() {
    let jaeger = Jaeger::start().await.unwrap();
    let traces = jaeger.traces("nobody").await.unwrap();
    assert_eq!(traces["data"].as_array().map(Vec::len), Some(0), "{traces}");
    assert!(jaeger.trace("00000000000000000000000000000001").await.is_err());
    let address = jaeger.otlp_grpc_url.trim_start_matches("http://");
    assert!(tokio::net::TcpStream::connect(address).await.is_ok());
}
