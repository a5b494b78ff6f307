-- One job a request. wrk -s enqueue.lua URL
wrk.method = "POST"
wrk.path = "/api/v1/enqueue"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"queue":"bench","payload":{"data":"' .. string.rep("x", 136) .. '"}}'
