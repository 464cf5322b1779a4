//! `make fuzz TARGET=watch_envelopes`.
#![cfg_attr(feature = "libfuzzer", no_main)]

portolan_fuzz::target!(watch_envelopes);
