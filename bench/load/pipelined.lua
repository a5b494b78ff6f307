-- One job a request, 16 requests at once on a connection. wrk -s pipelined.lua URL
local body = '{"queue":"bench","payload":{"data":"' .. string.rep("x", 136) .. '"}}'
local requests

function init(args)
  wrk.headers["Content-Type"] = "application/json"
  local one = wrk.format("POST", "/api/v1/enqueue", nil, body)
  requests = string.rep(one, 16)
end

function request()
  return requests
end
