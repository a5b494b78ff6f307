"""Connect and gRPC for workers (`worker.proto`).

handler         entry of all RPC calls
worker_service  unary calls: enqueue, fetch, ack and the others
worker_session  sans-I/O state machine of a lifecycle stream
worker_streams  lifecycle streams over HTTP
wire            one call in its protocol: Connect, Connect streams, gRPC
envelopes       framing and compression of the messages of a stream
turns           compressed messages, one in each turn of the loop
codecs          protobuf and JSON forms of messages
proto_file      the message table read from `worker.proto`
proto_json      JSON form of protobuf messages
status          error codes and trailers
"""
