//! The client's side of the protocol, once for router and agent: the way to the hub ([`HubLink`]), and how a program gets
//! its certificate and keeps it fresh ([`keep_enrolled`]).
//!
//! Not here: where a program keeps its identity and what it proves itself by (an [`Applicant`] knows), nor what is said on
//! the streams.

mod applicant;
mod enroll;
mod link;
mod news;

pub use applicant::{Applicant, Applied, enroll_until_done, keep_enrolled};
pub use enroll::{About, Answer, EnrollError};
pub use link::{HubLink, LinkError, OPEN_TIMEOUT, host_of};
pub use news::CaNews;
