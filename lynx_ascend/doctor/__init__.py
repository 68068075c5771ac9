"""`lynx-ascend doctor`: what is wrong with an installation or a running pair of servers, and the way out."""
